//! The tables of `docs/discovery.md`, made from the rows; a test compares.

use crate::device::DriverRow;
use crate::vendor::{self, Ccl, Named, Number, Root, VENDORS, Vendor, VersionOf};

const NONE: &str = "–";

/// The rows, without that of a vendor that doesn't exist.
pub(super) fn vendors() -> impl Iterator<Item = &'static Vendor> {
    let exists = |v: &&Vendor| v.key != super::invented::KEY;
    VENDORS.iter().copied().filter(exists)
}

fn or_none(text: String) -> String {
    match text.is_empty() {
        true => NONE.to_string(),
        false => text,
    }
}

fn table(head: &[&str], rows: Vec<Vec<String>>) -> Vec<String> {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | ")).replace("|  |", "| |");
    let head: Vec<String> = head.iter().map(|cell| cell.to_string()).collect();
    let mut lines = vec![line(&head), format!("|{}", "---|".repeat(head.len()))];
    lines.extend(rows.iter().map(|row| line(row)));
    lines
}

fn names() -> Vec<String> {
    let exist = vendor::all_names().filter(|(key, _)| *key != super::invented::KEY);
    let rows = exist.map(|(key, aliases)| {
        let state = match vendor::by_name(key) {
            Some(Named::Row(vendor)) if vendor.only_named => "driven, only if it is named",
            Some(Named::Row(_)) => "driven",
            _ => "host tier",
        };
        vec![
            key.to_string(),
            or_none(aliases.join(", ")),
            state.to_string(),
        ]
    });
    table(&["key", "other names", "state"], rows.collect())
}

fn order() -> Vec<String> {
    let detected = vendors().filter(|v| !v.only_named).map(|v| v.key);
    vec![detected.collect::<Vec<_>>().join(", ")]
}

fn nodes() -> Vec<String> {
    let with = vendors().filter(|v| !v.nodes.is_empty());
    let rows = with.map(|v| vec![v.key.to_string(), v.nodes.join(", ")]);
    table(&["vendor", "device nodes"], rows.collect())
}

fn roots(roots: &[Root]) -> String {
    let mut shown: Vec<String> = Vec::new();
    for root in roots {
        let text = match root {
            Root::Env(name, below) => format!("`{name}`/{below}"),
            // One page for all machines.
            Root::Folder(folder) if folder.contains("linux-gnu") => {
                "the machine's folder below /usr/lib".to_string()
            }
            Root::Folder(folder) => folder.to_string(),
        };
        if !shown.contains(&text) {
            shown.push(text);
        }
    }
    shown.join(", ")
}

fn places(library: &Ccl, driver: Option<&DriverRow>) -> Vec<String> {
    let both = |of_library: String, of_driver: Option<String>| match of_driver {
        Some(of_driver) if of_driver != of_library => {
            format!("{}; {}", or_none(of_library), or_none(of_driver))
        }
        _ => or_none(of_library),
    };
    let mut runtime = driver.map_or(String::new(), |row| row.sonames.join(", "));
    if let Some(low) = driver.and_then(|row| row.low) {
        runtime.push_str(&format!("; below it {}", low.sonames.join(", ")));
    }
    let first = [
        library.roots_first.then_some("library"),
        driver
            .is_some_and(|row| row.own_roots_first)
            .then_some("runtime"),
    ];
    vec![
        library.key.to_string(),
        library.sonames.join(", "),
        or_none(runtime),
        both(
            library.wheels.join(", "),
            driver.map(|row| row.wheels.join(", ")),
        ),
        both(roots(library.roots), driver.map(|row| roots(row.roots))),
        or_none(first.into_iter().flatten().collect::<Vec<_>>().join(", ")),
    ]
}

fn candidates() -> Vec<String> {
    let rows = vendors().map(|v| places(&v.ccl, Some(v.driver)));
    let head = [
        "vendor",
        "collective library",
        "runtime",
        "wheels",
        "roots",
        "roots first",
    ];
    table(&head, rows.chain([places(&vendor::FLAGCX, None)]).collect())
}

fn marks() -> Vec<String> {
    let rows = vendors().map(|v| &v.ccl).chain([&vendor::FLAGCX]);
    let rows = rows.map(|row| {
        let strangers = row
            .strangers
            .iter()
            .map(|(name, whose)| format!("`{name}` ({whose})"));
        let needs = row
            .stranger_needs
            .iter()
            .map(|(start, whose)| format!("needs {start}* ({whose})"));
        let versions = match row.version {
            VersionOf::Code(_) if row.end_version.major == u16::MAX => "any".to_string(),
            VersionOf::Code(_) => format!(">= {}, < {}", row.min_version, row.end_version),
            VersionOf::Opaque => "any, shown as it is".to_string(),
            VersionOf::Other(_) => "any".to_string(),
        };
        vec![
            row.key.to_string(),
            format!("`{}`", row.fingerprint),
            or_none(strangers.chain(needs).collect::<Vec<_>>().join(", ")),
            versions,
        ]
    });
    let head = ["vendor", "it has", "it has not", "versions"];
    table(&head, rows.collect())
}

fn numbers() -> Vec<String> {
    let rows = vendors().filter(|v| !v.number_names().is_empty()).map(|v| {
        let all = |numbers: &[Number]| numbers.iter().all(|n| *n == Number::Unknown);
        let needed = match all(&v.ccl.redops) {
            true => "yes",
            false => "no",
        };
        vec![
            v.key.to_string(),
            v.number_names().join(", "),
            needed.to_string(),
        ]
    });
    table(
        &["vendor", "numbers", "refused without them"],
        rows.collect(),
    )
}

/// The page with its tables made anew. Each stands after a line `<!-- made: NAME -->`, indented like
/// that, and ends before the next empty line.
fn refreshed(page: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        out.push(line.to_string());
        let Some(name) = line
            .trim()
            .strip_prefix("<!-- made: ")
            .and_then(|rest| rest.strip_suffix(" -->"))
        else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let made = match name {
            "names" => names(),
            "order" => order(),
            "nodes" => nodes(),
            "candidates" => candidates(),
            "marks" => marks(),
            "numbers" => numbers(),
            other => panic!("docs/discovery.md asks for {other}"),
        };
        // A table needs an empty line before it.
        out.push(String::new());
        out.extend(made.iter().map(|line| format!("{indent}{line}")));
        while lines.next_if(|line| line.is_empty()).is_some() {}
        while lines.next_if(|line| !line.is_empty()).is_some() {}
    }
    out.join("\n") + "\n"
}

#[test]
fn the_tables_are_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/discovery.md");
    let have = std::fs::read_to_string(path).unwrap();
    let want = refreshed(&have);
    if std::env::var_os("FLAGOSCOMM_BLESS").is_some() {
        std::fs::write(path, &want).unwrap();
        return;
    }
    for name in ["names", "order", "nodes", "candidates", "marks", "numbers"] {
        assert!(have.contains(&format!("<!-- made: {name} -->")), "{name}");
    }
    assert!(
        have == want,
        "docs/discovery.md is stale; refresh it with\n    cargo run -p xtask -- vendors"
    );
}

#[test]
fn a_stale_table_is_made_anew() {
    let page = "a\n   <!-- made: order -->\n\n   nvidia, amd\n\nb\n";
    let made = refreshed(page);
    assert_ne!(made, page);
    assert!(made.starts_with("a\n   <!-- made: order -->\n\n   nvidia, cambricon, "));
    assert!(made.ends_with("\n\nb\n"));
    assert_eq!(refreshed(&made), made);
}
