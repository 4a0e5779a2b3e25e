//! The rules of `docs/discovery.md` on real files, with the stand-in libraries.
//!
//! What a process loads stays loaded and what it decides stays decided, so every case runs in a
//! process of its own: this test binary again, with a list of steps.

use std::ffi::{CString, OsStr, c_char, c_int, c_long, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flagos_comm_testkit::ranks;
use flagos_comm_testkit::standins::{Broken, CallLog, Standins};

use super::open::{self, Lib};
use super::{chosen_driver, process_library, process_vendor, report};
use crate::device::{CopyKind, Driver, Guard};
use crate::vendor::comm::Scalar;
use crate::vendor::library::Progress;
use crate::vendor::options::{CommOptions, Knob};
use crate::{DataType, Error, Result};

const STEPS: &str = "LOAD_TEST_STEPS";

pub(super) fn has_compiler() -> bool {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let found = Command::new(compiler)
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("SKIPPED: this test needs a C compiler, and there is none");
    }
    found
}

/// Runs the steps in a process of their own; its output, of which stderr comes last.
fn run(steps: &[&str], fill: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "load::tests::steps",
        "--nocapture",
        "--test-threads=1",
    ]);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("FLAGOSCOMM_") || text.starts_with("FAKE_") {
            command.env_remove(&name);
        }
    }
    for var in crate::config::FOREIGN {
        command.env_remove(var.name);
    }
    command
        .env(STEPS, steps.join("\n"))
        .env("FLAGOSCOMM_LOG", "info");
    fill(&mut command);
    let mut command = Some(command);
    let outputs = ranks::run_ok(1, |_| command.take().unwrap(), Duration::from_secs(60));
    format!("{}\n--- stderr\n{}", outputs[0].stdout, outputs[0].stderr)
}

/// The line that a step printed.
fn line<'a>(output: &'a str, step: &str) -> &'a str {
    let start = format!("{step} -> ");
    output
        .lines()
        .find_map(|line| line.find(&start).map(|at| &line[at + start.len()..]))
        .unwrap_or_else(|| panic!("no line of {step}:\n{output}"))
}

/// Holds if `text` has every word.
#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing:\n{text}");
    }
}

pub(super) fn temp(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let base = flagos_comm_testkit::cargo::target_dir().join("load-tests");
    if n == 0 {
        sweep(&base);
    }
    let dir = base.join(format!("{}-{n}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Removes what earlier runs left behind.
fn sweep(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.split('-').next().unwrap_or_default();
        if !Path::new("/proc").join(owner).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Builds a shared library from C.
fn build(dir: &Path, file: &str, soname: &str, source: &str, more: &[&OsStr]) -> PathBuf {
    let c = dir.join(format!("{file}.c"));
    let out = dir.join(file);
    std::fs::write(&c, source).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let mut command = Command::new(compiler);
    command
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(&out)
        .arg(&c);
    command.arg(format!("-Wl,-soname,{soname}")).args(more);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    out
}

/// A copy of the stand-ins' folder with NCCL under another name.
fn with_nccl_as(standins: &Standins, file: &str) -> PathBuf {
    let dir = temp("renamed");
    for path in [standins.cuda(), standins.cudart()] {
        std::fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
    }
    std::fs::copy(standins.nccl(), dir.join(file)).unwrap();
    dir
}

// ---- the steps

fn call<T>(library: &Lib, name: &str, with: impl FnOnce(*mut c_void) -> T) -> T {
    let name = CString::new(name).unwrap();
    with(
        library
            .raw_symbol(&name)
            .expect("the stand-in has it")
            .as_ptr(),
    )
}

fn fake() -> Lib {
    open::loaded(OsStr::new("libcuda.so.1")).expect("the stand-in of the driver is loaded")
}

fn fake_set(device: i32) {
    call(&fake(), "fake_set_current_device", |f| {
        // SAFETY: the stand-in's function with this signature.
        let f = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_int)>(f) };
        f(device);
    });
}

fn fake_unbind() {
    call(&fake(), "fake_unbind_thread", |f| {
        // SAFETY: the stand-in's function with this signature.
        let f = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(f) };
        f();
    });
}

fn fake_count(symbol: &str) -> c_long {
    call(&fake(), "fake_call_count", |f| {
        // SAFETY: the stand-in's function with this signature.
        let f = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char) -> c_long>(f)
        };
        let symbol = CString::new(symbol).unwrap();
        f(symbol.as_ptr())
    })
}

fn driver() -> Result<&'static Driver> {
    process_vendor()?;
    chosen_driver().ok_or_else(|| Error::not_supported("no driver"))
}

fn step(step: &str) -> Result<String> {
    let (verb, rest) = step.split_once('=').unwrap_or((step, ""));
    match verb {
        "open" | "global" => {
            let scope = if verb == "global" {
                libc::RTLD_GLOBAL
            } else {
                libc::RTLD_LOCAL
            };
            // SAFETY: a stand-in, which may be opened by anyone.
            let opened =
                unsafe { libloading::os::unix::Library::open(Some(rest), libc::RTLD_NOW | scope) };
            std::mem::forget(opened.map_err(|e| Error::internal(format!("{e:?}")))?);
            Ok("opened".to_string())
        }
        "vendor" => {
            let chosen = process_vendor()?;
            let driver = match &chosen.driver {
                Ok(driver) => format!("{} {}", driver.title(), driver.path().display()),
                Err(error) => error.text().to_string(),
            };
            Ok(format!(
                "{} | {} | {driver}",
                chosen.vendor.map_or("-", |v| v.key),
                chosen.how
            ))
        }
        "library" => {
            let library = process_library()?;
            Ok(format!(
                "{} {} fp8={} bf16={}",
                library.path().display(),
                library.version_text(),
                library
                    .dtype(DataType::Float8e4m3)
                    .map_or_else(|e| e.to_string(), |d| d.to_string()),
                library.dtype(DataType::Bfloat16)?
            ))
        }
        "report" => Ok(format!("\n{}", report().as_text())),
        "json" => Ok(report().as_json()),
        "gems" => {
            // SAFETY: the other thread of this process waits for this one.
            unsafe { std::env::set_var("GEMS_VENDOR", rest) };
            Ok(String::new())
        }
        "id" => Ok(process_library()?.unique_id()?.len().to_string()),
        "init" => init(rest),
        "children" => children(),
        "bad-init" => {
            let library = process_library()?;
            let id = library.unique_id()?;
            let comm = library.init_rank(1, &id, 7, 1, &CommOptions::default())?;
            Ok(format!("{comm:?}"))
        }
        "current" => Ok(driver()?.current()?.to_string()),
        "set" => driver()?.set(rest.parse().unwrap()).map(|()| String::new()),
        "fake-set" => {
            fake_set(rest.parse().unwrap());
            Ok(String::new())
        }
        "unbind" => {
            fake_unbind();
            Ok(String::new())
        }
        "count" => Ok(fake_count(rest).to_string()),
        "guard" => {
            let driver = driver()?;
            let inside = Guard::with(driver, rest.parse().unwrap(), || driver.current())?;
            Ok(format!("inside {inside}"))
        }
        "guard-error" => {
            let driver = driver()?;
            Guard::with(driver, rest.parse().unwrap(), || -> Result<String> {
                Err(Error::invalid_usage("refused inside"))
            })
        }
        "guard-panic" => {
            let driver = driver()?;
            let panicked = std::panic::catch_unwind(|| {
                let _ = Guard::with(driver, rest.parse().unwrap(), || -> Result<()> {
                    panic!("on purpose")
                });
            });
            Ok(format!("panicked: {}", panicked.is_err()))
        }
        "device" => use_device(driver()?),
        "thread" => {
            let device = crate::device::of_thread();
            let driver = driver()?;
            let joined = std::thread::spawn(move || -> Result<i32> {
                device.apply()?;
                driver.current()
            });
            Ok(joined.join().unwrap()?.to_string())
        }
        other => panic!("unknown step {other}"),
    }
}

fn init(knobs: &str) -> Result<String> {
    let library = process_library()?;
    let mut options = CommOptions::default();
    for knob in knobs.split(',').filter(|k| !k.is_empty()) {
        match knob {
            "blocking" => options.set(Knob::Blocking, 1),
            "traffic" => options.set(Knob::TrafficClass, 3),
            "cta" => options.set(Knob::CtaPolicy, 1),
            "name" => options.set_comm_name(c"a name".to_owned()),
            other => panic!("unknown knob {other}"),
        }
    }
    let id = library.unique_id()?;
    let (comm, progress) = library.init_rank(1, &id, 0, 1, &options)?;
    assert_eq!(progress, Progress::Done);
    let text = format!("{} {} {}", comm.count()?, comm.user_rank()?, comm.device()?);
    assert_eq!(comm.async_error()?, Progress::Done);
    library.group_start()?;
    let _ = library.group_end()?;
    let finalized = comm
        .finalize()
        .map_or_else(|e| e.to_string(), |p| format!("{p:?}"));
    let _ = comm.destroy()?;
    let again = comm.destroy().unwrap_err();
    let late = comm.count().unwrap_err();
    Ok(format!(
        "{text} finalize {finalized}; again: {again}; late: {late}"
    ))
}

fn children() -> Result<String> {
    let library = process_library()?;
    let id = library.unique_id()?;
    let options = CommOptions::default();
    library.group_start()?;
    let (comm, _) = library.init_rank(1, &id, 0, 1, &options)?;
    let early = comm.raw().is_null();
    let _ = library.group_end()?;
    let (child, _) = comm.split(Some(3), 0, &options)?;
    let child = child.expect("a member gets a communicator");
    let (none, _) = comm.split(None, 0, &options)?;
    let mut text = format!(
        "early {early}, child {}, none {}",
        child.count()?,
        none.is_none()
    );
    let memory = library.mem_alloc(4096)?;
    let memory = crate::device::user_ptr(memory);
    let handle = comm.register(memory, 4096)?;
    comm.deregister(crate::device::user_ptr(handle))?;
    let (window, _) = comm.window_register(memory, 4096, 0)?;
    comm.window_deregister(crate::device::user_ptr(window.raw()))?;
    library.mem_free(memory)?;
    let op = comm.create_pre_mul_sum(Scalar::Host([0; 8]), DataType::Float32)?;
    comm.destroy_redop(op)?;
    text.push_str(&format!(", op {}", op >= 5));
    library.group_start()?;
    text.push_str(&format!(
        ", estimate {}",
        library.group_simulate_end()? >= 0.0
    ));
    let _ = child.abort()?;
    let _ = comm.destroy()?;
    Ok(text)
}

fn use_device(driver: &'static Driver) -> Result<String> {
    let stream = driver.stream_create()?;
    let (start, end) = (driver.event_create(true)?, driver.event_create(true)?);
    let device = driver.malloc(64)?;
    let host = driver.malloc_host(64)?;
    let mut text = format!("{:?}", driver.pointer_owner(device)?);
    text.push_str(&format!(" {:?}", driver.pointer_owner(host)?));
    let local = [0u8; 16];
    text.push_str(&format!(
        " {:?}",
        driver.pointer_owner(local.as_ptr().cast())?
    ));
    driver.event_record(start.handle(), stream.handle())?;
    // SAFETY: both blocks have 64 bytes and live until the stream is synchronised.
    unsafe {
        driver.memset_async(device, 0x5a, 64, stream.handle())?;
        driver.memcpy_async(host, device, 64, CopyKind::DeviceToHost, stream.handle())?;
    }
    driver.event_record(end.handle(), stream.handle())?;
    driver.stream_wait_event(stream.handle(), end.handle())?;
    driver.event_synchronize(end.handle())?;
    driver.stream_synchronize(stream.handle())?;
    assert!(driver.stream_query(stream.handle())? && driver.event_query(start.handle())?);
    assert!(driver.event_elapsed_ms(start.handle(), end.handle())? >= 0.0);
    assert!(
        !driver.is_capturing(stream.handle())?
            && !driver.is_capturing(crate::device::stream_of(std::ptr::null_mut()))?
    );
    // SAFETY: the block has 64 bytes that were just written, and the stream is done.
    let bytes = unsafe { std::slice::from_raw_parts(host.cast::<u8>(), 64) };
    assert!(bytes.iter().all(|b| *b == 0x5a));
    let mut word = [0u8; 8];
    // SAFETY: eight bytes of the device block into a live local.
    unsafe { driver.copy_to_host(word.as_mut_ptr().cast(), device, 8)? };
    assert_eq!(word, [0x5a; 8]);
    // SAFETY: each block is freed once, and the stream is done with it.
    unsafe {
        driver.free(device)?;
        driver.free_host(host)?;
    }
    driver.event_destroy(start)?;
    driver.event_destroy(end)?;
    driver.stream_destroy(stream)?;
    let uuid = driver.uuid(0).expect("a device has a UUID");
    assert_ne!(Some(uuid), driver.uuid(1));
    text.push_str(&format!(
        " devices {} bus {}",
        driver.count()?,
        driver.pci_bus_id(0)?
    ));
    let error = driver.set(99).unwrap_err();
    Ok(format!("{text} error {error}"))
}

/// Not a test of its own: runs the steps that the environment names, if it names any.
#[test]
fn steps() {
    let Ok(steps) = std::env::var(STEPS) else {
        return;
    };
    crate::log::install();
    for one in steps.lines() {
        let text = match step(one) {
            Ok(text) => text,
            Err(error) => format!("ERROR {:?} {}", error.code(), error.text()),
        };
        println!("{one} -> {text}");
    }
}

// ---- the vendor

#[test]
fn rule_1_and_2_named_with_spaces_and_case() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    for name in [" NVIDIA ", "cuda"] {
        let output = run(&["vendor", "library"], |c| {
            standins.env(c).env("GEMS_VENDOR", name);
        });
        has(
            line(&output, "vendor"),
            &["nvidia | nvidia, named by GEMS_VENDOR", "CUDA runtime"],
        );
        has(line(&output, "library"), &["libnccl.so.2 2.32.3"]);
    }
}

#[test]
fn rule_3_and_4_refused_names_open_nothing() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let log = temp("refused").join("log");
    let output = run(&["vendor", "library", "report"], |c| {
        standins
            .env(c)
            .env("GEMS_VENDOR", "nvidai")
            .env("FAKE_LOG", &log);
    });
    has(
        line(&output, "vendor"),
        &["ERROR InvalidArgument", "nvidai"],
    );
    assert_eq!(line(&output, "vendor"), line(&output, "library"));
    assert!(!output.contains("libnccl"), "{output}");
    assert!(CallLog::read(&log).is_empty());
    // A vendor that is named and isn't there opens nothing of another one.
    let output = run(&["vendor", "library", "report"], |c| {
        standins
            .env(c)
            .env("GEMS_VENDOR", "metax")
            .env("FAKE_LOG", &log);
    });
    has(
        line(&output, "vendor"),
        &["metax | metax, named", "libmcruntime.so"],
    );
    has(
        line(&output, "library"),
        &["ERROR NotSupported", "libmccl.so"],
    );
    assert!(!output.contains("libnccl"), "{output}");
    assert!(CallLog::read(&log).is_empty());
    let output = run(&["vendor", "library"], |c| {
        standins.env(c).env("GEMS_VENDOR", "bpu");
    });
    has(line(&output, "vendor"), &["- |", "host tier"]);
    has(
        line(&output, "library"),
        &["ERROR NotSupported", "host tier"],
    );
}

#[test]
fn rule_5_and_6_detection() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    for blank in ["", "  "] {
        let output = run(&["vendor"], |c| {
            standins.env(c).env("GEMS_VENDOR", blank);
        });
        has(line(&output, "vendor"), &["nvidia | nvidia, detected"]);
    }
    let output = run(
        &[&format!("open={}", standins.cudart().display()), "vendor"],
        |_| {},
    );
    has(
        line(&output, "vendor"),
        &["nvidia, detected: its driver ", " is loaded"],
    );
    // A runtime without devices is no reason to choose its vendor.
    let output = run(&["vendor"], |c| {
        standins.env(c).env("FAKE_DEVICES", "0");
    });
    has(
        line(&output, "vendor"),
        &[
            "- |",
            "no accelerator can be used (nvidia: CUDA runtime (",
            "sees no device",
        ],
    );
    assert!(!output.contains("WARN"), "{output}");
    has(&output, &["INFO vendor: no accelerator can be used"]);
    // No driver at all: normal, said at INFO, with names only.
    let output = run(&["vendor", "library", "report"], |_| {});
    let text = line(&output, "vendor");
    has(
        text,
        &[
            "- |",
            "no accelerator can be used (no driver of nvidia, cambricon, metax, ",
            "sunrise was found; `flagos-comm doctor --details` lists every place)",
        ],
    );
    assert!(!text.contains(".so") && !text.contains("du,"), "{text}");
    assert!(
        !output.contains("WARN") && !output.contains("panicked"),
        "{output}"
    );
    // The report has every place.
    has(
        &output,
        &[
            "libcudart.so.13 [soname] absent: libcudart.so.13: cannot open",
            "/opt/maca/lib/libmcruntime.so [root] absent",
        ],
    );
}

#[test]
fn rule_6_what_is_there_and_refused_is_explained() {
    if !has_compiler() {
        return;
    }
    let dir = temp("refused-driver");
    let text = "this is no library";
    std::fs::write(dir.join("libmcruntime.so"), text).unwrap();
    let named = dir.join("mine.so");
    std::fs::write(&named, text).unwrap();
    let output = run(&["vendor"], |c| {
        c.env("LD_LIBRARY_PATH", &dir)
            .env("FLAGOSCOMM_AMD_DRIVER", &named)
            .env("FLAGOSCOMM_DU_LIBRARY", &named);
    });
    let text = line(&output, "vendor");
    let named = named.display();
    has(
        text,
        &[
            "metax: libmcruntime.so: ",
            "file too short",
            &format!("amd: {named}: "),
            "not a shared library but text",
            "no driver of nvidia, ",
        ],
    );
    // What isn't there is not told of a vendor of which something is.
    assert!(!text.contains("/opt/maca"), "{text}");
    has(
        &output,
        &[
            "WARN FLAGOSCOMM_AMD_DRIVER is set, but no device of amd can be used: ",
            "WARN FLAGOSCOMM_DU_LIBRARY is set, but no device of du can be used: it is used only \
             if it is named: GEMS_VENDOR=du",
        ],
    );
}

#[test]
fn rule_6_a_driver_without_its_library_is_a_warning() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().without("libnccl.so.2").build();
    let output = run(&["library", "library"], |c| {
        standins.env(c);
    });
    has(
        line(&output, "library"),
        &[
            "ERROR NotSupported",
            "libnccl.so.2",
            "libnccl.so:",
            "/usr/lib",
        ],
    );
    assert_eq!(
        output.matches("WARN there is a driver of nvidia").count(),
        1,
        "{output}"
    );
    // Named and absent.
    let output = run(&["vendor", "library"], |c| {
        c.env("GEMS_VENDOR", "nvidia");
    });
    has(
        &output,
        &[
            "WARN GEMS_VENDOR names nvidia, whose driver",
            "libcudart.so.13",
            "libcuda.so.1",
        ],
    );
    has(
        &output,
        &["WARN GEMS_VENDOR names nvidia, but NVIDIA NCCL can't be loaded"],
    );
}

#[test]
fn rule_7_a_later_change_is_a_warning() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let output = run(
        &["vendor", "gems=metax", "library", "vendor", "vendor"],
        |c| {
            standins.env(c).env("GEMS_VENDOR", "nvidia");
        },
    );
    assert_eq!(
        output.matches("WARN GEMS_VENDOR changed from").count(),
        1,
        "{output}"
    );
    has(line(&output, "library"), &["libnccl.so.2"]);
}

#[test]
fn rule_8_nothing_is_opened_early() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let output = run(&["report", "vendor", "report"], |c| {
        standins.env(c);
    });
    has(line(&output, "report"), &[""]);
    has(&output, &["choice: nothing was chosen yet"]);
    assert!(!output.contains("libnccl"), "{output}");
}

// ---- candidates

#[test]
fn rule_10_override_that_fails() {
    if !has_compiler() {
        return;
    }
    let good = Standins::builder().build();
    let dir = temp("override");
    let missing = Standins::builder()
        .broken_nccl(Broken::MissingDependency)
        .build()
        .nccl();
    let text = Standins::builder().broken_nccl(Broken::Text).build().nccl();
    let truncated = Standins::builder()
        .broken_nccl(Broken::Truncated)
        .build()
        .nccl();
    let empty = Standins::builder()
        .broken_nccl(Broken::Empty)
        .build()
        .nccl();
    let mut bytes = std::fs::read(good.nccl()).unwrap();
    bytes[18] = if cfg!(target_arch = "aarch64") {
        62
    } else {
        183
    };
    let machine = dir.join("machine.so");
    std::fs::write(&machine, &bytes).unwrap();
    for (path, words) in [
        (dir.clone(), "is a directory"),
        (dir.join("nothing.so"), "there is no such file"),
        (text, "not a shared library but text"),
        (truncated, "truncated"),
        (machine, "AArch64"),
        (missing, "libfoo.so.9"),
        (empty, "it has no ncclCommCuDevice"),
    ] {
        let output = run(&["library"], |c| {
            good.env(c).env("FLAGOSCOMM_NVIDIA_LIBRARY", &path);
        });
        let text = line(&output, "library");
        has(text, &["ERROR NotSupported", words, path.to_str().unwrap()]);
        assert!(
            !text.contains("libnccl.so:"),
            "nothing else is tried: {text}"
        );
        has(&output, &["WARN"]);
    }
}

#[test]
fn rule_10_override_of_the_driver() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let output = run(&["vendor"], |c| {
        standins
            .env(c)
            .env("FLAGOSCOMM_NVIDIA_DRIVER", standins.cudart());
    });
    has(
        line(&output, "vendor"),
        &["nvidia", standins.cudart().to_str().unwrap()],
    );
    let output = run(&["vendor"], |c| {
        let wrong = standins.dir.join("none.so");
        standins
            .env(c)
            .env("FLAGOSCOMM_NVIDIA_DRIVER", wrong)
            .env("GEMS_VENDOR", "nvidia");
    });
    has(line(&output, "vendor"), &["none.so: there is no such file"]);
    assert!(
        !line(&output, "vendor").contains("libcuda.so.1"),
        "{output}"
    );
}

#[test]
fn rule_11_and_36_two_copies() {
    if !has_compiler() {
        return;
    }
    let loader = Standins::builder().build();
    let other = Standins::builder().nccl_version(22703).build();
    let open = format!("open={}", other.nccl().display());
    // The copy that the process has is used, not the one that the loader would find.
    let output = run(&[&open, "library", "report"], |c| {
        loader.env(c);
    });
    has(
        line(&output, "library"),
        &[other.nccl().to_str().unwrap(), "2.27.3"],
    );
    has(
        &output,
        &["libnccl.so.2 [already-loaded] already-loaded from"],
    );
    // An explicit path wins, with a warning that names both.
    let output = run(&[&open, "library", "report"], |c| {
        loader
            .env(c)
            .env("FLAGOSCOMM_NVIDIA_LIBRARY", loader.nccl());
    });
    has(
        line(&output, "library"),
        &[loader.nccl().to_str().unwrap(), "2.32.3"],
    );
    let real = |path: PathBuf| std::fs::canonicalize(path).unwrap().display().to_string();
    let note = format!(
        "the process has another copy, {}; flagos-comm uses {}",
        real(other.nccl()),
        real(loader.nccl())
    );
    has(
        &output,
        &[
            &format!("WARN NVIDIA NCCL: {note}"),
            &format!("note: {note}"),
        ],
    );
}

#[test]
fn rule_12_a_renamed_copy() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let dir = temp("renamed");
    for path in [standins.cuda(), standins.cudart()] {
        std::fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
    }
    // Wheels rename the soname too, so only the file's name is left to find it by.
    let source = "int dummy;";
    let hashed = dir.join("libnccl-0a1b2c3d.so.2");
    let _ = build(
        &dir,
        "libnccl-ffffffff.so.2",
        "libnccl-ffffffff.so.2",
        source,
        &[],
    );
    let renamed = Standins::builder().build();
    std::fs::copy(renamed.nccl(), &hashed).unwrap();
    let mut bytes = std::fs::read(&hashed).unwrap();
    let at = bytes
        .windows(13)
        .position(|w| w == b"libnccl.so.2\0")
        .unwrap();
    bytes[at..at + 12].copy_from_slice(b"libhashd.so.2"[..12].try_into().unwrap());
    std::fs::write(&hashed, &bytes).unwrap();
    let output = run(
        &[&format!("open={}", hashed.display()), "library", "report"],
        |c| {
            c.env("LD_LIBRARY_PATH", &dir);
        },
    );
    has(line(&output, "library"), &[hashed.to_str().unwrap()]);
    has(&output, &["[mapped] already-loaded"]);
}

#[test]
fn rule_13_both_names() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    for file in ["libnccl.so.2", "libnccl.so"] {
        let dir = with_nccl_as(&standins, file);
        let output = run(&["library", "report"], |c| {
            c.env("LD_LIBRARY_PATH", &dir);
        });
        has(
            line(&output, "library"),
            &[dir.join(file).to_str().unwrap()],
        );
        has(&output, &[&format!("{file} [soname] loaded from")]);
    }
}

#[test]
fn rule_14_and_15_wheel_and_root() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().without("libnccl.so.2").build();
    let full = Standins::builder().build();
    let top = temp("env");
    let site = top.join("lib/python3.99/site-packages");
    let lib = site.join("nvidia/nccl/lib");
    std::fs::create_dir_all(&lib).unwrap();
    std::fs::copy(full.nccl(), lib.join("libnccl.so.2")).unwrap();
    std::fs::copy(full.cuda(), lib.join("libcuda.so.1")).unwrap();
    let package = build(&site, "some.so", "some.so", "int some;", &[]);
    let output = run(
        &[&format!("open={}", package.display()), "library", "report"],
        |c| {
            standins.env(c);
        },
    );
    has(
        line(&output, "library"),
        &["site-packages/nvidia/nccl/lib/libnccl.so.2"],
    );
    has(&output, &["[wheel] loaded"]);
    let home = temp("home");
    std::fs::rename(&lib, home.join("lib64")).unwrap();
    let output = run(&["library", "report"], |c| {
        standins.env(c).env("CUDA_HOME", &home);
    });
    has(
        line(&output, "library"),
        &[home.join("lib64/libnccl.so.2").to_str().unwrap()],
    );
    has(&output, &["[root] loaded", "(below CUDA_HOME)"]);
}

const SKIN: &str = "int flagos_comm_instance = 1;\
    int ncclCommCuDevice(void) { return 9; } int ncclGetUniqueId(void) { return 9; }\
    int ncclGetVersion(int *v) { *v = 99999; return 0; }";

#[test]
fn rule_17_and_30_our_own_drop_in() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let dir = temp("skin");
    let skin = build(&dir, "libnccl.so.2", "libnccl.so.2", SKIN, &[]);
    let expected = standins.nccl();
    let expected = expected.to_str().unwrap();
    // The loader would give the skin for the bare name.
    let path = format!("{}:{}", dir.display(), standins.dir.display());
    let output = run(&["library", "report"], |c| {
        c.env("LD_LIBRARY_PATH", &path);
    });
    has(line(&output, "library"), &[expected, "2.32.3"]);
    has(&output, &["drop-in library", "[ld-library-path] loaded"]);
    assert!(!output.contains("another copy"), "{output}");
    // The process has the skin already, in any scope.
    for verb in ["open", "global"] {
        let step = format!("{verb}={}", skin.display());
        let output = run(&[&step, "library", "init"], |c| {
            standins.env(c);
        });
        has(line(&output, "library"), &[expected]);
        has(line(&output, "init"), &["1 0 0"]);
    }
    // By the search path of a mapped object that needs it.
    let user = temp("user");
    let rpath = format!("-Wl,-rpath,{}", standins.dir.display());
    let more: [&OsStr; 3] = [
        OsStr::new("-Wl,--no-as-needed"),
        OsStr::new(&rpath),
        standins.nccl().as_os_str(),
    ]
    .map(|o| {
        // The borrowed path must live as long as the call.
        Box::leak(o.to_os_string().into_boxed_os_str()) as &OsStr
    });
    let user = build(&user, "libuser.so", "libuser.so", "int user;", &more);
    let only_driver = Standins::builder().without("libnccl.so.2").build();
    let steps = [
        &format!("open={}", skin.display()),
        &format!("open={}", user.display()),
        "library",
        "report",
    ];
    let output = run(&steps, |c| {
        only_driver.env(c);
    });
    has(line(&output, "library"), &[expected]);
    has(&output, &["[runpath] loaded", "libuser.so, which needs it"]);
    // Named by the user: refused.
    let output = run(&["library"], |c| {
        standins.env(c).env("FLAGOSCOMM_NVIDIA_LIBRARY", &skin);
    });
    has(
        line(&output, "library"),
        &["ERROR NotSupported", "flagos_comm_instance"],
    );
}

/// FlagCX has a `libnccl.so` of its own over itself. FlagCX may have called us, through its plugin.
#[test]
fn rule_17_and_30_the_vendors_names_over_flagcx() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().flagcx().build();
    let dir = temp("over-flagcx");
    let code = SKIN.replace("int flagos_comm_instance = 1;", "");
    let folder = standins.dir.display().to_string();
    let options = [
        "-Wl,--no-as-needed".to_owned(),
        format!("-Wl,-rpath,{folder}"),
        format!("-L{folder}"),
        "-l:libflagcx.so".to_owned(),
    ];
    let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    let wrapper = build(&dir, "libnccl.so.2", "libnccl.so.2", &code, &options);
    let expected = standins.nccl();
    let expected = expected.to_str().unwrap();
    let path = format!("{}:{folder}", dir.display());
    let output = run(&["library", "report"], |c| {
        c.env("LD_LIBRARY_PATH", &path);
    });
    has(line(&output, "library"), &[expected]);
    has(
        &output,
        &["over FlagCX", "libflagcx.so", "[ld-library-path] loaded"],
    );
    assert!(!output.contains("another copy"), "{output}");
    // FlagCX's program is linked with it: it is there already, in any scope.
    for verb in ["open", "global"] {
        let step = format!("{verb}={}", wrapper.display());
        let output = run(&[&step, "library", "init"], |c| {
            standins.env(c);
        });
        has(line(&output, "library"), &[expected]);
        has(line(&output, "init"), &["1 0 0"]);
    }
}

#[test]
fn rule_20_modes() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    for mode in ["default", "deepbind", "global"] {
        let output = run(&["library", "init"], |c| {
            standins.env(c).env("FLAGOSCOMM_DLOPEN", mode);
        });
        has(line(&output, "init"), &["1 0 0"]);
    }
    let output = run(&["library"], |c| {
        standins.env(c).env("FLAGOSCOMM_DLOPEN", "lazy");
    });
    has(line(&output, "library"), &["libnccl.so.2"]);
    assert_eq!(
        output
            .matches("FLAGOSCOMM_DLOPEN=\"lazy\" is not understood")
            .count(),
        1,
        "{output}"
    );
}

#[test]
fn rule_23_the_loaders_words() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder()
        .broken_nccl(Broken::MissingDependency)
        .build();
    let output = run(&["library", "json"], |c| {
        standins.env(c);
    });
    let words = "libfoo.so.9: cannot open shared object file";
    has(line(&output, "library"), &[words]);
    has(line(&output, "json"), &[words]);
    assert_eq!(output.matches("WARN").count(), 1, "{output}");
}

#[test]
fn rule_24_a_sanitizer_and_our_drop_in() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let dir = temp("sanitizer");
    let source = format!("{SKIN} void __asan_init(void) {{}}");
    let skin = build(&dir, "libnccl.so.2", "libnccl.so.2", &source, &[]);
    let output = run(&[&format!("global={}", skin.display()), "library"], |c| {
        standins.env(c);
    });
    has(
        line(&output, "library"),
        &["ERROR NotSupported", "RTLD_DEEPBIND", "ASan"],
    );
}

// ---- acceptance

#[test]
fn rule_31_another_vendors_library() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().without("libnccl.so.2").build();
    let dir = temp("stranger");
    let source = "int ncclCommCuDevice(void) { return 0; } int ncclAllToAllv(void) { return 0; }";
    build(&dir, "libnccl.so.2", "libnccl.so.2", source, &[]);
    let path = format!("{}:{}", dir.display(), standins.dir.display());
    let output = run(&["library"], |c| {
        c.env("LD_LIBRARY_PATH", path);
    });
    has(
        line(&output, "library"),
        &["it is AMD's RCCL", dir.to_str().unwrap()],
    );
}

#[test]
fn rule_32_versions() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    for (code, words) in [
        ("2803", "NVIDIA NCCL version is 2.8.3, but >= 2.18.0"),
        ("20908", "version is 2.9.8"),
        ("21003", "version is 2.10.3"),
        ("30000", "version is 3.0.0"),
    ] {
        let output = run(&["library"], |c| {
            standins.env(c).env("FAKE_NCCL_VERSION", code);
        });
        has(line(&output, "library"), &["ERROR NotSupported", words]);
    }
    let output = run(&["library"], |c| {
        standins.env(c).env("FAKE_NCCL_VERSION", "23007");
    });
    has(line(&output, "library"), &[" 2.30.7 fp8=10"]);
    for code in ["0", "-1"] {
        let output = run(&["library", "report", "init"], |c| {
            standins.env(c).env("FAKE_NCCL_VERSION", code);
        });
        has(line(&output, "library"), &[" unknown fp8=float8e4m3 needs"]);
        has(
            &output,
            &[
                &format!("version unknown ({code})"),
                "WARN",
                "it is taken for 2.18.0",
            ],
        );
        has(line(&output, "init"), &["1 0 0"]);
    }
    // A candidate that is too old doesn't end the search.
    let old = Standins::builder().nccl_version(21403).build();
    let home = temp("newer");
    std::fs::create_dir(home.join("lib64")).unwrap();
    for path in [standins.nccl(), standins.cuda()] {
        std::fs::copy(&path, home.join("lib64").join(path.file_name().unwrap())).unwrap();
    }
    let output = run(&["library"], |c| {
        old.env(c).env("CUDA_HOME", &home);
    });
    has(
        line(&output, "library"),
        &[home.to_str().unwrap(), "2.32.3"],
    );
}

#[test]
fn rule_33_a_missing_required_function() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder()
        .omit("ncclAllReduce")
        .omit("ncclSend")
        .build();
    let output = run(&["library", "report"], |c| {
        standins.env(c);
    });
    has(
        line(&output, "library"),
        &["ERROR NotSupported", "it lacks ncclAllReduce, ncclSend"],
    );
    assert!(!output.contains("panicked"));
}

#[test]
fn rule_34_missing_optional_functions() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder()
        .omit("ncclGetLastError")
        .omit("ncclCommFinalize")
        .omit("ncclCommInitRankConfig")
        .build();
    let output = run(&["library", "report", "init", "init=blocking"], |c| {
        standins.env(c);
    });
    has(line(&output, "library"), &["2.32.3"]);
    has(
        &output,
        &["(without ncclGetLastError, ncclCommInitRankConfig, ncclCommFinalize)"],
    );
    has(
        line(&output, "init"),
        &[
            "1 0 0 finalize",
            "has no ncclCommFinalize",
            "2.14.3 brings it",
        ],
    );
    has(
        line(&output, "init=blocking"),
        &["ERROR NotSupported", "ncclCommInitRankConfig"],
    );
}

#[test]
fn rule_35_functions_of_another_library() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let dir = temp("stray");
    let real = with_nccl_as(&standins, "libreal.so");
    let rpath = format!("-Wl,-rpath,{}", real.display());
    let real = real.join("libreal.so");
    // Linked by its file name's soname, libnccl.so.2, so the outer one gets another soname.
    let more = [
        OsStr::new("-Wl,--no-as-needed"),
        OsStr::new(&rpath),
        real.as_os_str(),
    ];
    let outer = build(
        &dir,
        "libouter.so",
        "libouter.so",
        "int ncclCommCuDevice(void) { return 0; }",
        &more,
    );
    let output = run(&["library"], |c| {
        standins.env(c).env("FLAGOSCOMM_NVIDIA_LIBRARY", &outer);
    });
    has(
        line(&output, "library"),
        &[
            "ERROR NotSupported",
            "it lacks",
            "ncclAllReduce lies in",
            "libouter.so",
        ],
    );
}

// ---- calls

#[test]
fn configs_are_the_smallest_layout() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    for (knobs, config) in [
        ("blocking", "size=48 version=21800 blocking=1"),
        ("traffic", "size=48 version=22602"),
        ("cta", "size=72 version=22703"),
        ("name", "size=72 version=22703"),
        ("traffic,blocking,cta", "size=72 version=22703 blocking=1"),
    ] {
        let log = temp("config").join("log");
        let step = format!("init={knobs}");
        let output = run(&[&step], |c| {
            standins.env(c).env("FAKE_LOG", &log);
        });
        has(line(&output, &step), &["1 0 0"]);
        let calls = CallLog::read(&log);
        let call = calls
            .iter()
            .find(|c| c.name == "ncclCommInitRankConfig")
            .unwrap();
        has(&call.args, &[config]);
    }
    let old = Standins::builder().nccl_version(21803).build();
    let output = run(&["init=cta", "init=blocking", "library"], |c| {
        old.env(c);
    });
    has(
        line(&output, "init=cta"),
        &["ERROR NotSupported", "CTAPolicy needs NVIDIA NCCL 2.27.3"],
    );
    has(line(&output, "init=blocking"), &["1 0 0"]);
    has(
        line(&output, "library"),
        &["float8e4m3 needs NVIDIA NCCL 2.24.3", "bf16=9"],
    );
}

#[test]
fn errors_say_everything() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let output = run(&["id", "init", "bad-init"], |c| {
        standins.env(c);
    });
    assert_eq!(line(&output, "id"), "128");
    has(
        line(&output, "init"),
        &["1 0 0 finalize Done", "again: ", "is closed", "late: "],
    );
    has(
        line(&output, "bad-init"),
        &[
            "ERROR InvalidArgument",
            "ncclCommInitRank failed with 4 (",
            "its last error: ",
            "2.32.3",
        ],
    );
    let output = run(&["children"], |c| {
        standins.env(c);
    });
    has(
        line(&output, "children"),
        &["child 1, none true, op true, estimate true"],
    );
    let output = run(&["init"], |c| {
        standins.env(c).env("FAKE_FAIL", "ncclCommInitRank:8");
    });
    has(line(&output, "init"), &["ERROR Timeout", "failed with 8"]);
    let output = run(&["init"], |c| {
        standins.env(c).env("FAKE_FAIL", "ncclCommInitRank:77");
    });
    has(
        line(&output, "init"),
        &["ERROR UnhandledCclError", "failed with 77"],
    );
}

// ---- the device

#[test]
fn rule_40_the_runtime_answers() {
    if !has_compiler() {
        return;
    }
    for major in [12, 13] {
        let standins = Standins::builder().cudart_major(major).build();
        let open = format!("open={}", standins.cudart().display());
        let steps = [
            &open,
            "unbind",
            "current",
            "set=3",
            "thread",
            "fake-set=2",
            "device",
        ];
        let output = run(
            &steps.map(|s| if s == "unbind" { "vendor" } else { s }),
            |c| {
                standins.env(c);
            },
        );
        has(
            line(&output, "vendor"),
            &["CUDA runtime", standins.cudart().to_str().unwrap()],
        );
        assert_eq!(line(&output, "current"), "0", "{output}");
        assert_eq!(line(&output, "thread"), "3", "{output}");
        has(
            line(&output, "device"),
            &[
                "Device(2) HostPinned Unregistered devices 4 bus 0000",
                "failed with 101",
            ],
        );
    }
}

#[test]
fn rule_41_driver_only_and_no_context() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().without("libcudart.so.13").build();
    let log = temp("low").join("log");
    let output = run(
        &[
            "vendor",
            "current",
            "set=1",
            "fake-set=2",
            "guard=3",
            "device",
        ],
        |c| {
            standins.env(c).env("FAKE_LOG", &log);
        },
    );
    has(line(&output, "vendor"), &["nvidia", "CUDA driver"]);
    has(
        line(&output, "current"),
        &["ERROR UnboundDevice", "cuCtxGetDevice gave 201"],
    );
    assert_eq!(line(&output, "guard=3"), "inside 3");
    // This stand-in has no streams of its own; what the driver lacks is named.
    has(
        line(&output, "device"),
        &["ERROR NotSupported", "has no cuStreamCreate"],
    );
    let calls = CallLog::read(&log);
    let asked = calls
        .iter()
        .position(|c| c.name == "cuCtxGetDevice")
        .unwrap();
    let made = calls
        .iter()
        .position(|c| c.name == "cuDevicePrimaryCtxRetain")
        .unwrap();
    assert!(asked < made, "asking makes no context");
}

#[test]
fn rule_42_a_fresh_runtime_asks_below_first() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let output = run(
        &["vendor", "fake-set=2", "current", "count=cuCtxGetDevice"],
        |c| {
            standins.env(c);
        },
    );
    assert_eq!(line(&output, "current"), "2");
    assert_eq!(line(&output, "count=cuCtxGetDevice"), "1");
}

#[test]
fn rule_43_guard_restores_on_every_path() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let open = format!("open={}", standins.cudart().display());
    for guard in ["guard=1", "guard-error=1", "guard-panic=1", "guard=99"] {
        let output = run(&[&open, "vendor", "fake-set=2", guard, "current"], |c| {
            standins.env(c);
        });
        assert_eq!(line(&output, "current"), "2", "{guard}: {output}");
    }
    // Already there: nothing is set.
    let output = run(&[&open, "set=2", "guard=2", "count=cudaSetDevice"], |c| {
        standins.env(c);
    });
    assert_eq!(line(&output, "guard=2"), "inside 2");
    assert_eq!(line(&output, "count=cudaSetDevice"), "1");
    // Two calls of the guard ask twice: nothing is remembered.
    let output = run(
        &[
            &open,
            "current",
            "fake-set=1",
            "current",
            "guard=0",
            "current",
        ],
        |c| {
            standins.env(c);
        },
    );
    let answers: Vec<&str> = output
        .lines()
        .filter(|l| l.contains("current -> "))
        .collect();
    assert_eq!(
        answers
            .iter()
            .map(|l| l.chars().last().unwrap())
            .collect::<String>(),
        "011"
    );
    // A restore that fails is said.
    let output = run(&[&open, "vendor", "fake-set=2", "guard=1"], |c| {
        standins.env(c).env("FAKE_FAIL", "cudaSetDevice:999@2");
    });
    has(
        line(&output, "guard=1"),
        &[
            "ERROR UnhandledDeviceError",
            "putting the calling thread's device back",
            "999",
        ],
    );
}

#[test]
fn rule_50_the_report_as_json() {
    if !has_compiler() {
        return;
    }
    let standins = Standins::builder().build();
    let output = run(&["library", "json", "report"], |c| {
        standins.env(c);
    });
    let json = line(&output, "json");
    has(
        json,
        &[
            r#""choice":"nvidia, detected"#,
            r#""title":"CUDA runtime""#,
            r#""title":"NVIDIA NCCL""#,
            r#""outcome":"loaded""#,
            r#""version":"2.32.3""#,
            r#""missing":[]"#,
        ],
    );
}

/// What NCCL's own files export of the functions that are looked up, version by version: found in
/// the lists of the files that NVIDIA publishes.
#[test]
fn slots_match_what_nccl_exports() {
    use crate::vendor::Version;
    use crate::vendor::symbols::{Calls, Symbols};
    const NEW: &[((u16, u16, u16), &str)] = &[
        (
            (2, 18, 3),
            "AllGather AllReduce Bcast Broadcast CommAbort CommCount CommCuDevice CommDestroy \
             CommFinalize CommGetAsyncError CommInitAll CommInitRank CommInitRankConfig CommSplit \
             CommUserRank GetErrorString GetLastError GetUniqueId GetVersion GroupEnd GroupStart \
             Recv RedOpCreatePreMulSum RedOpDestroy Reduce ReduceScatter Send",
        ),
        ((2, 21, 5), "CommDeregister CommRegister MemAlloc MemFree"),
        (
            (2, 26, 2),
            "CommInitRankScalable GroupSimulateEnd ResetDebugInit",
        ),
        (
            (2, 27, 5),
            "CommShrink CommWindowDeregister CommWindowRegister",
        ),
        ((2, 28, 9), "AlltoAll CommRevoke Gather Scatter"),
        (
            (2, 29, 7),
            "CommGetUniqueId CommGrow CommMemStats CommResume CommSuspend PutSignal Signal \
             WaitSignal WinGetUserPtr",
        ),
        (
            (2, 31, 2),
            "AllGatherConfig AllReduceConfig AlltoAllConfig BroadcastConfig GatherConfig \
             ReduceConfig ReduceScatterConfig ScatterConfig",
        ),
        ((2, 32, 3), "SetEncryption"),
    ];
    let all = || Calls::SYMBOLS.iter().chain(Symbols::SYMBOLS);
    let mut seen = 0;
    let mut before = Version::new(0, 0, 0);
    for ((major, minor, patch), names) in NEW {
        let version = Version::new(*major, *minor, *patch);
        for name in names.split_whitespace() {
            let required = Calls::SYMBOLS.iter().any(|s| s.suffix == name);
            let slot = all().find(|s| s.suffix == name);
            let slot = slot.unwrap_or_else(|| panic!("no slot for {name}"));
            assert!(
                slot.since > before && slot.since <= version,
                "{name}: {}",
                slot.since
            );
            assert!(!required || version == Version::new(2, 18, 3), "{name}");
            seen += 1;
        }
        before = version;
    }
    // One function is others' only.
    assert_eq!(seen, all().count() - 1);
}
