//! What it costs that ranks find each other and agree: the whole init of the host tier, for 2 to 1024
//! ranks on this machine.

use clap::Parser;
use flagos_comm::internal;
use flagos_comm::{Limit, Options};
use flagos_comm_benches::{Probe, commit, cores, date, processor, scratch};
use plotters::prelude::*;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

/// Measures the init of communicators of the host tier with many ranks, several to a process.
///
/// The time runs from the word to start, which goes to all processes, until the last rank has its
/// communicator. All processes and threads are there before.
#[derive(Parser)]
struct Arguments {
    /// Numbers of ranks
    #[arg(long, default_value = "2,4,8,16,32,64,128,256,512,1024")]
    ranks: String,
    /// Processes that share the ranks, fewer where there are fewer ranks
    #[arg(long, default_value_t = 8)]
    processes: usize,
    /// Unique ids, each served by another process, as for flagosCommInitRankScalable
    #[arg(long, default_value_t = 1)]
    ids: usize,
    /// Communicators of each number of ranks
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Folder for rendezvous.json and rendezvous.svg [default: rendezvous under the target folder]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Fail if 1024 ranks take more than 2 s, or agreement among 8 more than 10 ms
    #[arg(long)]
    gate: bool,
    #[arg(long, hide = true)]
    worker: Option<String>,
}

// ---- one process with some of the ranks

/// What an init says about its parts, in microseconds: to meet, to agree, for the tier.
static TIMES: Mutex<Vec<(usize, [u64; 3])>> = Mutex::new(Vec::new());

struct Times;

impl log::Log for Times {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target() == "flagos_comm::init_times"
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        // "rank R of N: A us to meet, B us to agree, C us for the host tier"
        let text = record.args().to_string();
        let numbers: Vec<u64> = text
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|word| word.parse().ok())
            .collect();
        if let [rank, _, meet, agree, tier] = numbers[..] {
            let mut times = TIMES.lock().expect("no thread panics with it");
            times.push((rank as usize, [meet, agree, tier]));
        }
    }

    fn flush(&self) {}
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> [u8; 256] {
    let mut bytes = [0; 256];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..][..2], 16).expect("an id in hexadecimal");
    }
    bytes
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn one_rank(ids: &[[u8; 256]], nranks: usize, rank: usize) -> Result<usize, String> {
    let options = Options {
        tiers: Some("host".into()),
        init_timeout: Limit::After(Duration::from_secs(60)),
        ..Options::default()
    };
    let mut handle = 0;
    // SAFETY: `handle` outlives the call, and no group is open.
    let made =
        unsafe { internal::comm_init_rank(&mut handle, nranks as i32, ids, rank as i32, &options) };
    made.map(|_| handle)
        .map_err(|error| format!("rank {rank}: {error}"))
}

/// Lines in: the ids, then "go". Lines out: an id, then what it took.
fn worker(spec: &str) -> Result<(), String> {
    let numbers: Vec<usize> = spec.split(',').filter_map(|n| n.parse().ok()).collect();
    let [nranks, first, count, rounds] = numbers[..] else {
        return Err(format!("'{spec}' is no share of ranks"));
    };
    log::set_logger(&Times).map_err(|e| e.to_string())?;
    log::set_max_level(log::LevelFilter::Debug);
    let mut lines = std::io::stdin().lines();
    let mut line = || match lines.next() {
        Some(Ok(line)) => Ok(line),
        _ => Err(String::from("the benchmark has ended")),
    };
    for _ in 0..rounds {
        let own = internal::get_unique_id().map_err(|e| e.to_string())?;
        println!("{}", to_hex(&own));
        let ids: Vec<[u8; 256]> = line()?.split(' ').map(from_hex).collect();
        let start = Barrier::new(count + 1);
        let end = Barrier::new(count + 1);
        let before = open_files();
        let failed: Mutex<Option<String>> = Mutex::new(None);
        std::thread::scope(|scope| -> Result<(), String> {
            for rank in first..first + count {
                let (ids, start, end, failed) = (&ids, &start, &end, &failed);
                std::thread::Builder::new()
                    .stack_size(512 << 10)
                    .spawn_scoped(scope, move || {
                        start.wait();
                        let made = one_rank(ids, nranks, rank);
                        end.wait();
                        // All are there until the files have been counted.
                        end.wait();
                        match made {
                            Ok(handle) => drop(internal::comm_destroy(handle)),
                            Err(text) => *failed.lock().expect("no panics") = Some(text),
                        }
                    })
                    .map_err(|e| e.to_string())?;
            }
            println!("ready");
            line()?;
            start.wait();
            end.wait();
            let times = std::mem::take(&mut *TIMES.lock().expect("no panics"));
            let of_0 = times.iter().find(|(rank, _)| *rank == 0);
            let open = open_files() - before;
            let report = json!({ "open": open, "of_rank_0_us": of_0.map(|(_, times)| times) });
            println!("{report}");
            line()?;
            end.wait();
            Ok(())
        })?;
        if let Some(text) = failed.into_inner().expect("no panics") {
            return Err(text);
        }
    }
    Ok(())
}

// ---- the benchmark

struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    fn start(spec: &str) -> std::io::Result<Process> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--worker", spec])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || std::io::Error::other("a pipe is missing");
        let to = child.stdin.take().ok_or_else(missing)?;
        let from = child.stdout.take().ok_or_else(missing)?;
        let from = BufReader::new(from);
        Ok(Process { child, to, from })
    }

    fn say(&mut self, line: &str) -> std::io::Result<()> {
        writeln!(self.to, "{line}")?;
        self.to.flush()
    }

    fn hear(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        match self.from.read_line(&mut line)? {
            0 => Err(std::io::Error::other("a process of ranks has ended")),
            _ => Ok(line.trim().to_owned()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One number of ranks; milliseconds.
struct Row {
    ranks: usize,
    processes: usize,
    init: Vec<f64>,
    meet: Vec<f64>,
    agree: Vec<f64>,
    tier: Vec<f64>,
    /// Files that the process with most of them had open for its ranks.
    open: u64,
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn measure(ranks: usize, arguments: &Arguments) -> std::io::Result<Row> {
    let processes = arguments.processes.clamp(1, ranks);
    let bound = |process: usize| ranks * process / processes;
    let mut all = (0..processes)
        .map(|process| {
            let (first, end) = (bound(process), bound(process + 1));
            let (count, rounds) = (end - first, arguments.rounds);
            Process::start(&format!("{ranks},{first},{count},{rounds}"))
        })
        .collect::<std::io::Result<Vec<Process>>>()?;
    let mut row = Row {
        ranks,
        processes,
        init: Vec::new(),
        meet: Vec::new(),
        agree: Vec::new(),
        tier: Vec::new(),
        open: 0,
    };
    for _ in 0..arguments.rounds {
        let mut ids = Vec::new();
        for process in &mut all {
            ids.push(process.hear()?);
        }
        ids.truncate(arguments.ids.clamp(1, processes));
        for process in &mut all {
            process.say(&ids.join(" "))?;
        }
        for process in &mut all {
            process.hear()?;
        }
        let start = Instant::now();
        for process in &mut all {
            process.say("go")?;
        }
        let mut reports = Vec::new();
        for process in &mut all {
            reports.push(process.hear()?);
        }
        row.init.push(start.elapsed().as_secs_f64() * 1e3);
        for process in &mut all {
            process.say("end")?;
        }
        for report in &reports {
            let report: Value = serde_json::from_str(report).map_err(std::io::Error::other)?;
            row.open = row.open.max(report["open"].as_u64().unwrap_or(0));
            let times = &report["of_rank_0_us"];
            for (at, to) in [&mut row.meet, &mut row.agree, &mut row.tier]
                .into_iter()
                .enumerate()
            {
                to.extend(times[at].as_f64().map(|us| us / 1e3));
            }
        }
    }
    Ok(row)
}

fn plot(file: &Path, rows: &[Row], title: &str) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(file, (760, 460)).into_drawing_area();
    area.fill(&WHITE)?;
    let x = rows.iter().map(|row| row.ranks as f64);
    let (x0, x1) = x.fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)));
    let low = rows
        .iter()
        .map(|row| least(&row.agree))
        .fold(1f64, f64::min);
    let high = rows.iter().map(|row| most(&row.init)).fold(1f64, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 15))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(
            (x0 / 1.3..x1 * 1.3).log_scale().base(2.0),
            (low / 2.0..high * 2.0).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("ranks")
        .y_desc("ms, median (init: with least and most)")
        .x_label_formatter(&|v| format!("{v:.0}"))
        .y_label_formatter(&|v| format!("{v}"))
        .draw()?;
    type Part = fn(&Row) -> f64;
    let parts: [(&str, RGBColor, Part); 4] = [
        ("the whole init", BLUE, |row| median(&row.init)),
        ("of it, to meet", GREEN, |row| median(&row.meet)),
        ("of it, shared memory", MAGENTA, |row| median(&row.tier)),
        ("of it, to agree", RED, |row| median(&row.agree)),
    ];
    for (name, color, part) in parts {
        let points = || rows.iter().map(|row| (row.ranks as f64, part(row)));
        chart
            .draw_series(LineSeries::new(points(), color))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
        chart.draw_series(points().map(|point| Circle::new(point, 3, color.filled())))?;
    }
    chart.draw_series(rows.iter().map(|row| {
        let x = row.ranks as f64;
        PathElement::new([(x, least(&row.init)), (x, most(&row.init))], BLUE)
    }))?;
    // n log n through the largest number of ranks.
    if let Some(last) = rows.last() {
        let cost = |n: f64| n * n.log2();
        let scale = median(&last.init) / cost(last.ranks as f64);
        let points = rows.iter().map(|row| row.ranks as f64);
        let points = points.map(|n| (n, (cost(n) * scale).max(low / 2.0)));
        let grey = RGBColor(150, 150, 150);
        chart
            .draw_series(LineSeries::new(points, grey))?
            .label("n log n")
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], grey));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

fn report(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    let before = Probe::take();
    let mut rows = Vec::new();
    for ranks in arguments.ranks.split(',') {
        let ranks = ranks.trim().parse()?;
        eprintln!("{ranks} ranks ...");
        rows.push(measure(ranks, arguments)?);
    }
    let after = Probe::take();
    let title = format!(
        "init on the host tier, up to {} processes, {} cores, {}",
        arguments.processes,
        cores(),
        date()
    );
    println!("\n{title}");
    println!(
        "{}; commit {}; {} unique id(s), {} rounds; before: cache line {:.0} ns, memcpy {:.1} GB/s; \
         after: {:.0} ns, {:.1} GB/s\n",
        processor(),
        commit(),
        arguments.ids,
        arguments.rounds,
        before.line_ns,
        before.memcpy_gbs,
        after.line_ns,
        after.memcpy_gbs
    );
    println!(
        "| ranks | processes | init ms | least | most | to meet | to agree | shared memory | open files |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for row in &rows {
        println!(
            "| {} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} | {:.1} | {} |",
            row.ranks,
            row.processes,
            median(&row.init),
            least(&row.init),
            most(&row.init),
            median(&row.meet),
            median(&row.agree),
            median(&row.tier),
            row.open
        );
    }
    let out = arguments
        .out
        .clone()
        .unwrap_or_else(|| scratch("rendezvous"));
    std::fs::create_dir_all(&out)?;
    let data = json!({
        "what": "init of a communicator on the host tier, from the word to start until the last rank \
                 has it; the parts are those of rank 0; milliseconds",
        "date": date(),
        "commit": commit(),
        "processor": processor(),
        "cores": cores(),
        "ids": arguments.ids,
        "before": before.json(),
        "after": after.json(),
        "rows": rows.iter().map(|row| json!({
            "ranks": row.ranks,
            "processes": row.processes,
            "init_ms": row.init,
            "meet_ms": row.meet,
            "agree_ms": row.agree,
            "shared_memory_ms": row.tier,
            "most_open_files_of_a_process": row.open,
        })).collect::<Vec<_>>(),
    });
    std::fs::write(out.join("rendezvous.json"), format!("{data:#}\n"))?;
    plot(&out.join("rendezvous.svg"), &rows, &title)?;
    println!("\nwritten to {}", out.display());
    let mut good = true;
    for row in &rows {
        let (init, agree) = (median(&row.init), median(&row.agree));
        if row.ranks == 1024 && init > 2000.0 || row.ranks == 8 && agree > 10.0 {
            eprintln!(
                "TOO SLOW: {} ranks: {init:.1} ms, {agree:.1} ms to agree",
                row.ranks
            );
            good = false;
        }
    }
    Ok(good || !arguments.gate)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(spec) = &arguments.worker {
        return match worker(spec) {
            Ok(()) => ExitCode::SUCCESS,
            Err(text) => {
                eprintln!("{text}");
                ExitCode::FAILURE
            }
        };
    }
    match report(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
