//! Programs that were built against the last release run with this library: nothing is taken away from what
//! `capi/abi` has, and nothing in it has changed. What is new is no fault.

use flagos_comm_capi_tests::{debug, have, root, run, scratch};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const REFRESH: &str = "A field that is new at the end of a struct with a size is allowed; whatever else breaks programs of \
     the last release needs a new SONAME (capi/README.md, \"ABI policy\").\n\
     What is there now becomes the baseline by: cargo run -p xtask -- abi-baseline";

fn blessed() -> bool {
    std::env::var_os("FLAGOSCOMM_BLESS").is_some()
}

/// Where the baselines of this machine's architecture lie.
fn baseline() -> PathBuf {
    let file = format!("libflagos_comm.{}.abi", std::env::consts::ARCH);
    root().join("capi/abi").join(file)
}

/// What abidw sees in a library, without what belongs to the engine.
fn dump(library: &Path, to: &Path) -> String {
    run(Command::new("abidw")
        .args(["--no-comp-dir-path", "--no-corpus-path", "--no-show-locs"])
        .args(["--no-elf-needed", "--drop-undefined-syms", "--out-file"])
        .arg(to)
        .arg(library));
    let text = reachable(&fs::read_to_string(to).expect("a dump"));
    fs::write(to, &text).expect("scratch");
    text
}

/// An element of a dump, which has one tag a line.
struct Element {
    open: String,
    inner: Vec<Element>,
    close: Option<String>,
}

impl Element {
    fn attribute(&self, name: &str) -> Option<&str> {
        let (_, rest) = self.open.split_once(&format!(" {name}='"))?;
        rest.split('\'').next()
    }

    /// Whether it is exported.
    fn root(&self) -> bool {
        self.attribute("elf-symbol-id").is_some()
    }

    fn every<'a>(&'a self, see: &mut impl FnMut(&'a Element)) {
        see(self);
        for inner in &self.inner {
            inner.every(see);
        }
    }

    /// What is left of it, `needed` being the types that count; a part of something that counts stays.
    fn keep(&self, needed: &BTreeSet<&str>, inside: bool, text: &mut String) -> bool {
        let counts =
            inside || self.root() || self.attribute("id").is_some_and(|id| needed.contains(id));
        let mut inner = String::new();
        let mut any = counts;
        for element in &self.inner {
            any |= element.keep(needed, counts, &mut inner);
        }
        if any {
            *text += &self.open;
            *text += "\n";
            *text += &inner;
            if let Some(close) = &self.close {
                *text += close;
                *text += "\n";
            }
        }
        any
    }
}

fn parse<'a>(lines: &mut impl Iterator<Item = &'a str>) -> (Vec<Element>, Option<String>) {
    let mut elements = Vec::new();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("</") {
            return (elements, Some(line.to_owned()));
        }
        let (inner, close) = if line.ends_with("/>") {
            (Vec::new(), None)
        } else {
            parse(lines)
        };
        elements.push(Element {
            open: line.to_owned(),
            inner,
            close,
        });
    }
    (elements, None)
}

/// The symbols, the exported functions and the types that they mention. The rest of a dump is the engine's own
/// types and paths of the building machine.
fn reachable(dump: &str) -> String {
    let (corpus, _) = parse(&mut dump.lines());
    let corpus = corpus.first().expect("a dump has a corpus");
    let mut defined: BTreeMap<&str, &Element> = BTreeMap::new();
    let mut waiting: Vec<&Element> = Vec::new();
    corpus.every(&mut |element| {
        if let Some(id) = element.attribute("id") {
            defined.insert(id, element);
        }
        if element.root() {
            waiting.push(element);
        }
    });
    let mut needed = BTreeSet::new();
    while let Some(element) = waiting.pop() {
        element.every(&mut |part| {
            for name in ["type-id", "naming-typedef-id", "method-class-id"] {
                if let Some(id) = part.attribute(name)
                    && needed.insert(id)
                    && let Some(&definition) = defined.get(id)
                {
                    waiting.push(definition);
                }
            }
        });
    }
    let mut text = format!("{}\n", corpus.open);
    let mut units = 0;
    for part in &corpus.inner {
        if part.open.trim_start().starts_with("<abi-instr") {
            let mut kept = String::new();
            part.keep(&needed, false, &mut kept);
            // Units have names of the compiler's making, and must have some that differ.
            if let Some((head, rest)) = kept.split_once(" path='")
                && let Some((_, tail)) = rest.split_once('\'')
            {
                units += 1;
                text += &format!("{head} path='{units}'{tail}");
            }
        } else {
            part.keep(&needed, true, &mut text);
        }
    }
    text + corpus.close.as_deref().unwrap_or("") + "\n"
}

/// What abidiff has against the second dump; None if a program of the first runs with it.
fn difference(before: &Path, after: &Path) -> Option<String> {
    let output = Command::new("abidiff")
        .args(["--no-added-syms", "--no-show-locs"])
        .args([before, after])
        .output()
        .expect("abidiff can be started");
    // The bits of its status: 1 failed, 2 was misused, 4 something changed, 8 and breaks programs.
    let code = output.status.code().expect("abidiff ends by itself");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        code & 3 == 0,
        "abidiff: {code}\n{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    (code != 0).then_some(said)
}

#[test]
fn the_library_has_all_that_its_baseline_has() {
    if !have("abidw") || !have("abidiff") {
        return;
    }
    let dir = scratch("abi");
    let now = dir.join("now.abi");
    let text = dump(&debug().join("libflagos_comm.so"), &now);
    let names = |text: &str| text.matches("<function-decl ").count();
    assert!(names(&text) > 60, "abidw saw {} functions", names(&text));
    if blessed() {
        fs::write(baseline(), &text).expect("capi/abi can be written");
    }
    // One exists for the architecture that everything is run on.
    if !baseline().is_file() && std::env::consts::ARCH != "x86_64" {
        eprintln!("SKIPPED: there is no {}", baseline().display());
        return;
    }
    if let Some(why) = difference(&baseline(), &now) {
        panic!("the library no longer has what capi/abi has\n{why}\n{REFRESH}");
    }

    // The comparison sees what it is there for. To see what an older dump makes of this library, the older
    // one is changed in the other direction.
    let doctored = dir.join("doctored.abi");
    let compare = |from: &str, to: &str| {
        assert!(text.contains(from), "the dump has no {from}");
        fs::write(&doctored, text.replacen(from, to, usize::MAX)).expect("scratch");
        difference(&doctored, &now)
    };
    // A function that is gone; seen from the other side, one that is new.
    let without: String = {
        let start = text
            .find("<function-decl name='flagosAllReduce'")
            .expect("it is there");
        let end = start
            + text[start..].find("</function-decl>").expect("its end")
            + "</function-decl>".len();
        format!("{}{}", &text[..start], &text[end..])
            .lines()
            .filter(|line| !line.contains("elf-symbol name='flagosAllReduce'"))
            .fold(String::new(), |all, line| all + line + "\n")
    };
    fs::write(&doctored, without).expect("scratch");
    let gone = difference(&now, &doctored).expect("a removed function is a difference");
    assert!(gone.contains("flagosAllReduce"), "{gone}");
    assert_eq!(
        difference(&doctored, &now),
        None,
        "an added function is none"
    );

    // A parameter of another type, and a field in another place.
    let usize_id = text
        .lines()
        .find(|line| line.contains("<type-decl name='usize'"))
        .and_then(|line| line.split(" id='").nth(1)?.split('\'').next())
        .expect("usize");
    let i32_id = text
        .lines()
        .find(|line| line.contains("<type-decl name='i32'"))
        .and_then(|line| line.split(" id='").nth(1)?.split('\'').next())
        .expect("i32");
    let changed = compare(
        &format!("<parameter type-id='{usize_id}' name='count'/>"),
        &format!("<parameter type-id='{i32_id}' name='count'/>"),
    );
    assert!(changed.is_some_and(|why| why.contains("flagosAllReduce")));
    let field = |offset: u32| {
        format!("layout-offset-in-bits='{offset}'>\n            <var-decl name='version'")
    };
    let moved = compare(&field(96), &field(64));
    assert!(moved.is_some_and(|why| why.contains("flagosConfig_t")));
}

/// The numbers of the header: enumerators, and macros that are numbers. abidw sees integers in their place.
fn numbers(header: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in header.lines() {
        let line = line.trim();
        let pair = match line.strip_prefix("#define ") {
            Some(rest) => rest.split_once(' '),
            None => line.trim_end_matches(',').split_once(" = "),
        };
        let Some((name, value)) = pair else { continue };
        let value = value.trim().trim_end_matches(',');
        let digits = value.trim_matches(|c| c == '(' || c == ')');
        let is_number = digits
            .trim_start_matches('-')
            .starts_with(|c: char| c.is_ascii_digit())
            || digits == "INT_MIN";
        let ours = name.starts_with("flagos") || name.starts_with("FLAGOS_");
        // The version is meant to change.
        if ours && is_number && !name.starts_with("FLAGOS_COMM_VERSION") {
            found.insert(format!("{name} = {value}"));
        }
    }
    found
}

#[test]
fn the_header_has_all_numbers_of_its_baseline() {
    let header = fs::read_to_string(root().join("include/flagos_comm.h")).expect("the header");
    let now = numbers(&header);
    assert!(
        now.contains("flagosSuccess = 0") && now.len() > 50,
        "{now:?}"
    );
    let file = root().join("capi/abi/numbers.txt");
    if blessed() {
        let text = now
            .iter()
            .fold(String::new(), |all, line| all + line + "\n");
        fs::write(&file, text).expect("capi/abi can be written");
    }
    let before = fs::read_to_string(&file).expect("capi/abi/numbers.txt");
    let lost: Vec<&str> = before.lines().filter(|line| !now.contains(*line)).collect();
    assert!(
        lost.is_empty(),
        "the header no longer has what capi/abi/numbers.txt has: {lost:#?}\n{REFRESH}"
    );
}
