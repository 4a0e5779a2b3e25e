//! What one call costs over the same call of the vendor's library, in instructions, exactly.

use clap::Parser;
use flagos_comm_benches::{commit, date, find_program, scratch};
use flagos_comm_testkit::Standins;
use flagos_comm_testkit::cargo::{libflagos, workspace};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What an operation may cost beyond the budget. Reduce has eight arguments, two of them on the stack,
/// which have to be copied for the vendor's call, and once more where numbers are looked up.
fn extra(operation: &str, budget: i64) -> i64 {
    match operation {
        "Reduce" if budget > IDENTITY => 8,
        "Reduce" => 4,
        _ => 0,
    }
}

/// The budget where the vendor's numbers are ours.
const IDENTITY: i64 = 40;

/// Counts the instructions of one call through libflagos_comm.so to a stand-in of NCCL whose operations
/// return at once, and of the same call made directly; fails above the budget.
///
/// callgrind counts only inside the driver's loop of calls, and the count of N calls is taken from that
/// of 2N, so the figures are exact and the same on every run. The list of functions that ran inside the
/// loop must hold no lock, allocation, environment, clock or driver function, and neither a system call
/// nor an instruction that locks the bus may run once per call.
#[derive(Parser)]
struct Options {
    /// libflagos_comm.so to measure [default: the one that is built from this tree]
    #[arg(long)]
    lib: Option<PathBuf>,
    /// Vendors [default: nvidia]; `all` are those whose calls need no device to be set
    #[arg(long, value_delimiter = ',')]
    vendor: Vec<String>,
    /// Most instructions that a call may cost over the direct call [default: the vendor's]
    #[arg(long)]
    budget: Option<i64>,
    /// Calls: N, and 2N in the second run
    #[arg(long, default_value_t = 2000)]
    calls: u64,
    /// Write the table as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Operations [default: all]
    operations: Vec<String>,
}

/// A vendor whose calls are counted.
struct Vendor {
    key: &'static str,
    /// What the names of its library start with.
    prefix: &'static str,
    /// What a call may cost over the direct call.
    budget: i64,
    /// Operations that it has not by itself.
    without: &'static [&'static str],
}

const fn vendor(key: &'static str, prefix: &'static str, budget: i64) -> Vendor {
    let without: &[&str] = &[];
    Vendor {
        key,
        prefix,
        budget,
        without,
    }
}

/// What libraries older than NCCL 2.28 make of messages.
const LATE: &[&str] = &["Gather", "Scatter", "AlltoAll"];

/// Those with our numbers may cost 40, those whose numbers are looked up 50, HCCL 70.
const VENDORS: [Vendor; 10] = [
    vendor("nvidia", "nccl", 40),
    Vendor {
        // Its all-to-all has another spelling.
        without: &["AlltoAll"],
        ..vendor("amd", "nccl", 40)
    },
    Vendor {
        without: &["AlltoAll"],
        ..vendor("hygon", "nccl", 40)
    },
    Vendor {
        without: LATE,
        ..vendor("iluvatar", "nccl", 40)
    },
    Vendor {
        without: LATE,
        ..vendor("thead", "nccl", 40)
    },
    Vendor {
        without: &["AlltoAll"],
        ..vendor("metax", "mccl", 40)
    },
    Vendor {
        without: LATE,
        ..vendor("mthreads", "mccl", 40)
    },
    vendor("tsingmicro", "tccl", 50),
    Vendor {
        without: &["Gather", "Scatter"],
        ..vendor("cambricon", "cncl", 50)
    },
    Vendor {
        without: &["Gather"],
        ..vendor("ascend", "Hccl", 70)
    },
];

const OPERATIONS: [&str; 10] = [
    "AllReduce",
    "Broadcast",
    "Reduce",
    "AllGather",
    "ReduceScatter",
    "Gather",
    "Scatter",
    "AlltoAll",
    "Send",
    "Recv",
];

type Result<T> = std::result::Result<T, String>;

fn finish(command: &mut Command) -> Result<()> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!(
        "{command:?}: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    ))
}

/// Builds the driver into `dir`.
fn build(dir: &Path) -> Result<PathBuf> {
    let driver = dir.join("driver");
    finish(
        Command::new("cc")
            .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"])
            .arg(workspace().join("benches/instructions/driver.c"))
            .arg("-o")
            .arg(&driver)
            .arg("-ldl"),
    )?;
    Ok(driver)
}

/// What callgrind saw inside the loop of calls.
#[derive(Debug, Default, PartialEq)]
struct Profile {
    /// Totals by event: `Ir` instructions, `Ge` bus locks, `sysCount` system calls.
    totals: BTreeMap<String, u64>,
    /// Instructions of each function itself.
    functions: BTreeMap<String, u64>,
}

/// Reads callgrind's output format, version 1.
fn parse(text: &str) -> Profile {
    let mut profile = Profile::default();
    let mut events: Vec<&str> = Vec::new();
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut positions = 1;
    let mut current = "";
    let mut inclusive = false;
    for line in text.lines() {
        if let Some(list) = line.strip_prefix("positions: ") {
            positions = list.split_whitespace().count();
        } else if let Some(list) = line.strip_prefix("events: ") {
            events = list.split_whitespace().collect();
        } else if let Some(list) = line.strip_prefix("summary: ") {
            profile.totals = events
                .iter()
                .zip(list.split_whitespace())
                .filter_map(|(event, n)| Some(((*event).to_string(), n.parse().ok()?)))
                .collect();
        } else if let Some((key, name)) = line
            .split_once('=')
            .filter(|(key, _)| matches!(*key, "fn" | "cfn"))
        {
            // `(12) name` names number 12, `(12)` means it again.
            let name = match name.split_once(") ") {
                Some((number, name)) => {
                    names.insert(number, name);
                    name
                }
                None => {
                    let number = name.trim_end_matches(')');
                    names.get(number).copied().unwrap_or(number)
                }
            };
            if key == "fn" {
                current = name;
            }
        } else if line.starts_with("calls=") {
            inclusive = true; // the next line is what the callee cost, with its callees
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let cost = line.split_whitespace().nth(positions);
            let cost = cost.and_then(|n| n.parse().ok()).unwrap_or(0u64);
            if !inclusive && cost > 0 {
                *profile.functions.entry(current.to_string()).or_default() += cost;
            }
            inclusive = false;
        }
    }
    profile
}

/// Why a function has no place on the path of a call, if it has none.
fn forbidden(function: &str) -> Option<&'static str> {
    // callgrind appends 'N to recursive functions; glibc's have prefixes and versions.
    let bare = function.split(['\'', '@']).next().unwrap_or(function);
    let bare = bare.trim_start_matches('_');
    let starts = |list: &[&str]| list.iter().any(|p| bare.starts_with(p));
    let within = |list: &[&str]| list.iter().any(|p| function.contains(p));
    let driver = bare
        .strip_prefix("cuda")
        .or_else(|| bare.strip_prefix("cu"))
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    if driver {
        Some("driver call")
    } else if bare == "free"
        || starts(&[
            "malloc",
            "calloc",
            "realloc",
            "int_malloc",
            "int_free",
            "libc_malloc",
            "libc_free",
            "posix_memalign",
            "aligned_alloc",
            "rust_alloc",
            "rust_dealloc",
            "rdl_alloc",
            "rustc::",
        ])
        || within(&["alloc::alloc", "alloc::raw_vec", "malloc_"])
    {
        Some("allocation")
    } else if starts(&["pthread_", "lll_", "futex", "GI_pthread"])
        || within(&["mutex", "Mutex", "RwLock", "rwlock", "Condvar", "futex"])
    {
        Some("lock")
    } else if starts(&[
        "getenv",
        "secure_getenv",
        "setenv",
        "std::env",
        "std::sys::env",
    ]) || within(&["std::env::"])
    {
        Some("environment")
    } else if starts(&[
        "syscall",
        "read",
        "write",
        "open",
        "close",
        "poll",
        "sendmsg",
        "recvmsg",
        "ioctl",
        "clock_gettime",
        "vdso",
        "getpid",
        "gettid",
        "sched_",
        "nanosleep",
    ]) {
        Some("system call or clock")
    } else if starts(&["dl_", "dlsym", "dlopen", "dladdr", "do_lookup"]) {
        Some("dynamic loading")
    } else {
        None
    }
}

struct Measure<'a> {
    vendor: &'a Vendor,
    standins: &'a Standins,
    driver: &'a Path,
    dir: &'a Path,
    calls: u64,
}

/// The numbers of Tsingmicro's stand-in, none of which is ours.
const SHIFTED: &str = "int8=100,uint8=101,int32=102,uint32=103,int64=104,uint64=105,float16=106,\
                       float32=107,float64=108,bfloat16=109,sum=100,prod=101,max=102,min=103,avg=104";

struct Cost {
    per_call: BTreeMap<String, u64>,
    functions: Vec<String>,
}

impl Measure<'_> {
    fn profile(&self, mode: &str, operation: &str, calls: u64, library: &Path) -> Result<Profile> {
        let file = self.dir.join(format!("callgrind.{mode}.{operation}"));
        let mut command = Command::new("valgrind");
        command
            .args(["-q", "--tool=callgrind", "--collect-atstart=no"])
            .args(["--toggle-collect=counted_*"])
            .args(["--collect-systime=yes", "--collect-bus=yes"])
            .arg(format!("--callgrind-out-file={}", file.display()))
            .arg(self.driver)
            .args([mode, self.vendor.prefix, operation, &calls.to_string()])
            .arg(library)
            .env("GEMS_VENDOR", self.vendor.key)
            .env("FLAGOSCOMM_TSINGMICRO_NUMBERS", SHIFTED);
        finish(self.standins.env(&mut command))?;
        let text =
            std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(parse(&text))
    }

    fn cost(&self, mode: &str, operation: &str, library: &Path) -> Result<Cost> {
        let once = self.profile(mode, operation, self.calls, library)?;
        let twice = self.profile(mode, operation, 2 * self.calls, library)?;
        let mut per_call = BTreeMap::new();
        for (event, n) in &twice.totals {
            let more = n.saturating_sub(once.totals.get(event).copied().unwrap_or(0));
            // Threads in the background make a few system calls; one per call would be `calls` of them.
            per_call.insert(event.clone(), (more + self.calls / 2) / self.calls);
        }
        let instructions = per_call.get("Ir").copied().unwrap_or(0);
        if instructions == 0 {
            return Err(format!(
                "callgrind counted nothing for {mode} {operation}: {twice:?}"
            ));
        }
        Ok(Cost {
            per_call,
            functions: twice.functions.into_keys().collect(),
        })
    }
}

fn measure(options: &Options) -> Result<bool> {
    if find_program("valgrind").is_none() {
        return Err("there is no valgrind; on Debian: apt-get install valgrind".into());
    }
    let lib = match &options.lib {
        Some(lib) => lib
            .canonicalize()
            .map_err(|e| format!("{}: {e}", lib.display()))?,
        None => libflagos(),
    };
    let dir = scratch("instructions");
    let driver = build(&dir)?;
    let mut chosen: Vec<&Vendor> = Vec::new();
    for key in &options.vendor {
        match VENDORS.iter().find(|v| v.key == key) {
            Some(vendor) => chosen.push(vendor),
            None if key == "all" => chosen.extend(&VENDORS),
            None => {
                return Err(format!(
                    "no counts of {key}: it needs its device to be set, or is not known"
                ));
            }
        }
    }
    if chosen.is_empty() {
        chosen.push(&VENDORS[0]);
    }
    println!("instructions per call, {}, commit {}", date(), commit());
    let mut wrong = Vec::new();
    let mut rows = Vec::new();
    for vendor in chosen {
        let mut builder = Standins::of(vendor.key).bare();
        match vendor.key {
            // In one library.
            "ascend" => builder = builder.version(80300),
            "tsingmicro" => builder = builder.define("FAKE_SHIFTED_NUMBERS"),
            _ => {}
        }
        let standins = builder.build();
        let measure = Measure {
            vendor,
            standins: &standins,
            driver: &driver,
            dir: &dir,
            calls: options.calls.max(1),
        };
        measure_vendor(options, &lib, &measure, &mut wrong, &mut rows)?;
    }
    if let Some(file) = &options.json {
        let report = json!({ "date": date(), "commit": commit(), "rows": rows, "wrong": wrong });
        std::fs::write(file, format!("{report:#}\n"))
            .map_err(|e| format!("{}: {e}", file.display()))?;
    }
    for sentence in &wrong {
        eprintln!("WRONG: {sentence}");
    }
    Ok(wrong.is_empty())
}

fn measure_vendor(
    options: &Options,
    lib: &Path,
    measure: &Measure<'_>,
    wrong: &mut Vec<String>,
    rows: &mut Vec<serde_json::Value>,
) -> Result<()> {
    let vendor = measure.vendor;
    let direct_library = measure.standins.ccl();
    let most = options.budget.unwrap_or(vendor.budget);
    let wanted: Vec<&str> = if options.operations.is_empty() {
        OPERATIONS.to_vec()
    } else {
        options.operations.iter().map(String::as_str).collect()
    };

    println!(
        "\n{}: over = through libflagos_comm.so, less the direct call; budget +{most} (Reduce +{})\n",
        vendor.key,
        most + extra("Reduce", most)
    );
    println!("| operation | direct | ours | over | bus locks | system calls |");
    println!("|---|---:|---:|---:|---:|---:|");
    for operation in wanted {
        if vendor.without.contains(&operation) {
            continue;
        }
        let direct = measure.cost("direct", operation, &direct_library)?;
        let ours = match measure.cost("ours", operation, lib) {
            Ok(ours) => ours,
            Err(why) => {
                println!("| {operation} | - | failed | - | - | - |");
                wrong.push(format!("{} {operation} failed: {why}", vendor.key));
                continue;
            }
        };
        let event = |cost: &Cost, name: &str| cost.per_call.get(name).copied().unwrap_or(0) as i64;
        let more = |name| event(&ours, name) - event(&direct, name);
        let (over, locks, calls) = (more("Ir"), more("Ge"), more("sysCount"));
        println!(
            "| {operation} | {} | {} | {over:+} | {locks} | {calls} |",
            event(&direct, "Ir"),
            event(&ours, "Ir"),
        );
        let budget = most + extra(operation, most);
        if over > budget {
            wrong.push(format!(
                "{} {operation} costs {over:+} instructions, more than +{budget}",
                vendor.key
            ));
        }
        if locks > 0 {
            wrong.push(format!(
                "{operation} runs {locks} instructions that lock the bus"
            ));
        }
        if calls > 0 {
            wrong.push(format!("{operation} makes {calls} system calls"));
        }
        let own: Vec<&String> = ours
            .functions
            .iter()
            .filter(|f| !direct.functions.contains(f))
            .collect();
        for function in &own {
            if let Some(why) = forbidden(function) {
                wrong.push(format!("{operation} runs {function}: {why}"));
            }
        }
        rows.push(json!({
            "vendor": vendor.key, "operation": operation, "direct": event(&direct, "Ir"), "ours": event(&ours, "Ir"),
            "over": over, "bus_locks": locks, "system_calls": calls, "functions": own,
        }));
    }
    println!("\nfunctions on the path of the last operation, beside those of the direct call:");
    for function in rows
        .last()
        .and_then(|row| row["functions"].as_array())
        .into_iter()
        .flatten()
    {
        println!("  {}", function.as_str().unwrap_or_default());
    }
    Ok(())
}

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_callgrinds_format() {
        let text = "version: 1\npositions: line\nevents: Ir Ge sysCount\nsummary: 30 2 1\n\n\
                    fn=(1) counted_reduce\n10 8\n+1 2 1\ncfi=(3)\ncfn=(2) flagosAllReduce\ncalls=5 0 \n12 20\n\
                    fn=(2)\n* 15\n-3 5\n\nfn=(4) poll\n0 0 0 1\n";
        let profile = parse(text);
        assert_eq!(profile.totals["Ir"], 30);
        assert_eq!(profile.totals["Ge"], 2);
        assert_eq!(profile.totals["sysCount"], 1);
        let functions: Vec<(&str, u64)> = profile
            .functions
            .iter()
            .map(|(name, n)| (name.as_str(), *n))
            .collect();
        assert_eq!(functions, [("counted_reduce", 10), ("flagosAllReduce", 20)]);
    }

    #[test]
    fn knows_what_is_forbidden() {
        for name in [
            "malloc",
            "_int_malloc",
            "free",
            "__rust_alloc",
            "alloc::raw_vec::finish_grow",
            "pthread_mutex_lock@@GLIBC_2.2.5",
            "__lll_lock_wait",
            "std::sys::sync::mutex::futex::Mutex::lock_contended",
            "getenv",
            "syscall",
            "write",
            "clock_gettime@@GLIBC_2.17",
            "cudaGetDevice",
            "cuCtxGetCurrent",
            "dlsym",
        ] {
            assert!(forbidden(name).is_some(), "{name}");
        }
        for name in [
            "flagosAllReduce",
            "flagos_comm::internal::all_reduce",
            "ncclAllReduce",
            "counted_reduce",
            "custom_map",
            "__tls_get_addr",
            "cut",
        ] {
            assert!(forbidden(name).is_none(), "{name}");
        }
    }
}
