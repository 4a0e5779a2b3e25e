//! The host tier against other libraries on one host; flagosAllReduce between two machines, also in layers against the
//! flat way, or its ways against each other; all paired in the same processes.

use clap::Parser;
use flagos_comm_benches::comparison::{self, OPERATIONS, Settings};
use flagos_comm_benches::{
    Probe, commit, cores, date, find_program, processor, scratch, size_name,
};
use flagos_comm_testkit::cargo::{libflagos, workspace};
use plotters::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Compares the host tier on one host with Open MPI, MPICH, gloo and a ring over UCX, or between two machines with gloo.
///
/// Blocks of ours and of the peer alternate in the same processes; each pair of neighbours gives one
/// ratio, peer over ours: above 1, ours is faster. The median and p10..p90 of the ratios are shown, and beside them
/// what the project must and what it would like to reach.
#[derive(Parser)]
struct Options {
    /// libflagos_comm.so to measure [default: the one that is built from this tree]
    #[arg(long)]
    lib: Option<PathBuf>,
    /// Sizes in bytes; 268435456 takes a minute for each operation and peer
    /// [default: 8,1024,16384,65536,262144,1048576,16777216, and 131072,524288 between machines]
    #[arg(long)]
    sizes: Option<String>,
    /// Ranks on this host; more than there are cores share them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: u32,
    /// Only these operations, by commas [default: all of all-reduce, all-gather, reduce-scatter, all-to-all, broadcast,
    /// latency, stream]
    #[arg(long, value_delimiter = ',', value_parser = OPERATIONS.map(|o| o.name()))]
    operations: Vec<String>,
    /// Pairs of blocks per size, fewer where they take long
    #[arg(long, default_value_t = 101)]
    pairs: u32,
    /// Seconds of a block
    #[arg(long, default_value_t = 0.01)]
    block: f64,
    /// Folder for peers.json and peers.svg, peers-4.json and peers-4.svg with 4 ranks, machines.json and so on
    /// [default: peers under the target folder]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Renew the files and the tables in docs/ (the working tree's)
    #[arg(long, conflicts_with_all = ["machines", "out"])]
    write_docs: bool,
    /// Only these peers, by commas, UCC only so; or ways: all-reduce, ours against ours, and against a copy past the caches
    #[arg(long, value_delimiter = ',', value_parser = ["openmpi", "mpich", "ucx", "gloo", "ucc", WAYS])]
    peer: Vec<String>,
    /// Two machines, which are network namespaces on one bridge (root, iproute2): our engine over UCX against
    /// gloo; the files are machines.json and machines.svg
    #[arg(long)]
    machines: bool,
    /// Ranks of each machine; with several also the layers against the flat way
    #[arg(long, requires = "machines", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    per_machine: u32,
    /// Between the machines also a link of this rate, as tc writes it (1gbit): how much of it the bus
    /// bandwidth is, in blocks of at least 0.2 s
    #[arg(long, requires = "machines", value_parser = Rate::parse)]
    rate: Option<Rate>,
    /// Fail if the median of a ratio is below 1, or ours below 0.9 of a link from 64 KiB on, or if a peer is
    /// missing
    #[arg(long)]
    gate: bool,
}

struct Peer {
    key: &'static str,
    source: &'static str,
    compiler: &'static str,
    flags: &'static [&'static str],
    libraries: &'static [&'static str],
    install: &'static str,
}

/// The rate of a link.
#[derive(Clone)]
struct Rate {
    /// As tc takes it.
    text: String,
    bits_per_second: f64,
}

impl Rate {
    /// Seconds of a block: a shaper lets pass at once what has not passed before, which must not count.
    const BLOCK: f64 = 0.2;
    /// What it lets pass at once.
    const BURST: &str = "128kb";
    /// How much of it has to be used, and from how many bytes on.
    const LEAST: (f64, f64) = (0.9, 65536.0);

    fn parse(text: &str) -> Result<Rate, String> {
        let units = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)];
        let rate = units.iter().find_map(|(unit, bits)| {
            let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
            (number > 0.0).then_some(number * bits)
        });
        match rate {
            Some(bits_per_second) => Ok(Rate {
                text: text.into(),
                bits_per_second,
            }),
            None => Err(String::from("a number and kbit, mbit or gbit, as 1gbit")),
        }
    }
}

impl Options {
    fn sizes(&self) -> &str {
        self.sizes.as_deref().unwrap_or(match self.machines {
            true => "8,1024,16384,65536,131072,262144,524288,1048576,16777216",
            false => "8,1024,16384,65536,262144,1048576,16777216",
        })
    }

    /// What is compared with, if it is not other libraries on one host.
    fn keys(&self) -> &[&str] {
        match (self.machines, self.per_machine) {
            (false, _) => &[WAYS],
            (true, 1) => &[GLOO],
            (true, _) => &[LAYERS, GLOO],
        }
    }
}

const GLOO: &str = "gloo";
/// Only if it is asked for.
const WAYS: &str = "ways";
/// Ours between machines of which each has several ranks, against ours without layers.
const LAYERS: &str = "layers";

const PEERS: [Peer; 3] = [
    Peer {
        key: GLOO,
        source: "benches/peers/gloo.cc",
        compiler: "c++",
        flags: &["-std=c++17", "-O2", "-Wall", "-Wextra", "-pthread"],
        libraries: &["-lgloo", "-ldl"],
        install: "apt-get install libgloo-dev g++",
    },
    Peer {
        key: WAYS,
        source: "benches/peers/ways.c",
        compiler: "cc",
        flags: &["-std=gnu11", "-O2", "-Wall", "-Wextra"],
        libraries: &["-ldl"],
        install: "apt-get install gcc",
    },
    Peer {
        key: LAYERS,
        source: "benches/peers/layers.c",
        compiler: "cc",
        flags: &["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra"],
        libraries: &["-ldl"],
        install: "apt-get install gcc",
    },
];

/// A folder with a copy of the library for each setting that is compared.
fn copies(lib: &Path, dir: &Path, settings: &[&str]) -> Result<PathBuf, String> {
    for setting in settings {
        let copy = dir.join(format!("{setting}.so"));
        std::fs::copy(lib, &copy).map_err(|e| format!("{}: {e}", copy.display()))?;
    }
    Ok(dir.to_owned())
}

/// Every operation against every peer on this host.
fn one_host(options: &Options, lib: PathBuf) -> Result<bool, String> {
    let sizes = options.sizes().split(',').map(|size| {
        let bytes = size.trim().parse().ok().filter(|bytes| *bytes >= 4);
        bytes.ok_or_else(|| format!("{size:?} is not a size in bytes, of at least one float32"))
    });
    let settings = Settings {
        lib,
        peers: options.peer.clone(),
        operations: options.operations.clone(),
        ranks: options.ranks,
        sizes: sizes.collect::<Result<_, _>>()?,
        pairs: options.pairs,
        block: options.block,
    };
    let report = comparison::run(&settings)?;
    println!("{}", report.markdown());
    let written = match options.write_docs {
        true => report.write_docs()?,
        false => report.write(&options.out.clone().unwrap_or_else(|| scratch("peers")))?,
    };
    for file in written {
        println!("written: {}", file.display());
    }
    for sentence in report.missing.iter().chain(&report.behind()) {
        eprintln!("{sentence}");
    }
    let slower = report.rows.iter().any(|r| r.ratio.below(1.0));
    Ok(!report.rows.is_empty() && !(options.gate && (slower || !report.missing.is_empty())))
}

struct Row {
    peer: String,
    data: Value,
}

impl Row {
    /// How much of a link the bus bandwidth of ours or of the peer is: the size, which each of two machines has to send,
    /// by the time.
    fn share(&self, rate: &Rate, side: &str) -> f64 {
        let seconds = self.number(&format!("/{side}_us/median")) * 1e-6;
        self.number("/bytes") * 8.0 / seconds / rate.bits_per_second
    }

    fn number(&self, pointer: &str) -> f64 {
        self.data
            .pointer(pointer)
            .and_then(Value::as_f64)
            .unwrap_or(f64::NAN)
    }
}

fn build(peer: &Peer, dir: &Path) -> Result<PathBuf, String> {
    if find_program(peer.compiler).is_none() {
        return Err(format!("there is no {}", peer.compiler));
    }
    let program = dir.join(peer.key);
    let out = Command::new(peer.compiler)
        .args(peer.flags)
        .arg("-I")
        .arg(workspace().join("include"))
        .arg(workspace().join(peer.source))
        .arg("-o")
        .arg(&program)
        .args(peer.libraries)
        .output()
        .map_err(|e| e.to_string())?;
    if out.status.success() {
        Ok(program)
    } else {
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }
}

/// Two network namespaces with an address each on one bridge, until this goes.
struct Machines {
    names: Vec<String>,
}

impl Machines {
    /// The addresses.
    const ADDRESSES: [&str; 2] = ["10.79.0.1", "10.79.0.2"];

    fn new() -> Result<Machines, String> {
        let name = |what: &str| format!("flagos-bench-{}-{what}", std::process::id());
        let mut machines = Machines { names: Vec::new() };
        for name in [name("switch"), name("0"), name("1")] {
            ip(&["netns", "add", &name])?;
            machines.names.push(name);
        }
        let switch = machines.names[0].clone();
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "br0", "up"])?;
        for (number, address) in Machines::ADDRESSES.iter().enumerate() {
            let (port, host) = (format!("p{number}"), &machines.names[number + 1]);
            let (peer, prefix) = (
                format!("peer name eth0 netns {host}"),
                format!("{address}/24"),
            );
            let cable = format!("link add {port} netns {switch} type veth {peer}");
            ip(&cable.split(' ').collect::<Vec<_>>())?;
            ip(&["-n", &switch, "link", "set", &port, "master", "br0", "up"])?;
            ip(&["-n", host, "addr", "add", &prefix, "dev", "eth0"])?;
            for device in ["eth0", "lo"] {
                ip(&["-n", host, "link", "set", device, "up"])?;
            }
        }
        Ok(machines)
    }

    /// Shapes what each sends.
    fn shape(&self, rate: &Rate) -> Result<(), String> {
        for host in &self.names[1..] {
            let shaper = format!(
                "-n {host} qdisc add dev eth0 root tbf rate {} burst {} latency 20ms",
                rate.text,
                Rate::BURST
            );
            command("tc", &shaper.split(' ').collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// What the peer's program needs to go into them.
    fn arguments(&self) -> Vec<&str> {
        let names = self.names[1..].iter().map(String::as_str);
        names
            .zip(Machines::ADDRESSES)
            .flat_map(|(name, address)| [name, address])
            .collect()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    command("ip", words)
}

fn command(program: &str, words: &[&str]) -> Result<(), String> {
    let out = Command::new(program)
        .args(words)
        .output()
        .map_err(|e| format!("{program}: {e}"))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{program} {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&out.stderr).trim()
        )),
    }
}

fn measure(
    peer: &Peer,
    program: &Path,
    lib: &Path,
    options: &Options,
    dir: &Path,
    machines: Option<&Machines>,
    block: f64,
) -> Result<Vec<Row>, String> {
    let mut command = Command::new(program);
    let lib = match peer.key {
        WAYS => copies(lib, dir, &["off", "on", "auto"])?,
        LAYERS => copies(lib, dir, &["layers", "flat"])?,
        _ => lib.to_owned(),
    };
    command
        .arg(lib)
        .arg(options.sizes())
        .arg(options.pairs.to_string())
        .arg(block.to_string());
    let store = dir.join("gloo-store");
    if peer.key == GLOO {
        let _ = std::fs::remove_dir_all(&store);
        std::fs::create_dir_all(&store).map_err(|e| format!("{}: {e}", store.display()))?;
        command.arg(&store);
    }
    if let Some(machines) = machines {
        // The kernel is one, for which UCX would use shared memory.
        command
            .arg(options.per_machine.to_string())
            .args(machines.arguments())
            .env("UCX_TLS", "tcp,self")
            .env("UCX_NET_DEVICES", "eth0");
    }
    let out = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|e| format!("{command:?}: {e}"))?;
    if !out.status.success() {
        return Err(format!("the comparison failed: {}", out.status));
    }
    let mut name = peer.key.to_string();
    let mut rows = Vec::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let Ok(data) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        match data["peer"].as_str() {
            Some(told) => name = told.into(),
            None => rows.push(Row {
                peer: name.clone(),
                data,
            }),
        }
    }
    Ok(rows)
}

fn plot(
    file: &Path,
    rows: &[Row],
    shaped: Option<(&Rate, &[Row])>,
    title: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let height = if shaped.is_some() { 800 } else { 460 };
    let area = SVGBackend::new(file, (760, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let (upper, lower) = area.split_vertically(460);
    plot_ratios(&upper, rows, title)?;
    if let Some((rate, rows)) = shaped {
        plot_shares(&lower, rows, rate)?;
    }
    area.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The peers, in their order.
fn names_of(rows: &[Row]) -> Vec<&str> {
    let mut names: Vec<&str> = rows.iter().map(|r| r.peer.as_str()).collect();
    names.dedup();
    names
}

/// From the smallest to the largest size.
fn sizes(rows: &[Row]) -> (f64, f64) {
    let x = rows.iter().map(|r| r.number("/bytes"));
    x.fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)))
}

fn plot_shares(
    area: &Area<'_>,
    rows: &[Row],
    rate: &Rate,
) -> Result<(), Box<dyn std::error::Error>> {
    let (x0, x1) = sizes(rows);
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("the same on a link of {}", rate.text),
            ("sans-serif", 15),
        )
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d((x0 / 1.5..x1 * 1.5).log_scale().base(2.0), 0.0..1.0)?;
    chart
        .configure_mesh()
        .x_desc("size")
        .y_desc("bus bandwidth / rate of the link")
        .x_label_formatter(&|v| size_name(v.round() as u64))
        .draw()?;
    let names = names_of(rows);
    let ours = names.first().map(|name| (*name, "ours", &RED));
    let peers = names.iter().zip([&BLUE, &GREEN, &MAGENTA]);
    let peers = peers.map(|(name, color)| (*name, "peer", color));
    for (of, side, color) in ours.into_iter().chain(peers) {
        let name = if side == "ours" { side } else { of };
        let points = || {
            let mine = rows.iter().filter(|r| r.peer == of);
            mine.map(|r| (r.number("/bytes"), r.share(rate, side)))
        };
        chart
            .draw_series(LineSeries::new(points(), color))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
        chart.draw_series(points().map(|at| Circle::new(at, 3, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

fn plot_ratios(
    area: &Area<'_>,
    rows: &[Row],
    title: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let (x0, x1) = sizes(rows);
    let low = rows.iter().map(|r| r.number("/ratio/p10"));
    let high = rows.iter().map(|r| r.number("/ratio/p90"));
    let y0 = low.fold(1f64, f64::min) / 1.5;
    let y1 = high.fold(1f64, f64::max) * 1.5;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 15))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(
            (x0 / 1.5..x1 * 1.5).log_scale().base(2.0),
            (y0..y1).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("size")
        .y_desc("time of the peer / ours, median and p10..p90")
        .x_label_formatter(&|v| size_name(v.round() as u64))
        .y_label_formatter(&|v| format!("{v}"))
        .draw()?;
    chart.draw_series(LineSeries::new([(x0 / 1.5, 1.0), (x1 * 1.5, 1.0)], &BLACK))?;
    for (name, color) in names_of(rows)
        .into_iter()
        .zip([&BLUE, &RED, &GREEN, &MAGENTA, &CYAN])
    {
        let mine = || rows.iter().filter(move |r| r.peer == name);
        let point = |r: &Row, key: &str| (r.number("/bytes"), r.number(key));
        chart
            .draw_series(LineSeries::new(
                mine().map(|r| point(r, "/ratio/median")),
                color,
            ))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
        chart
            .draw_series(mine().map(|r| {
                PathElement::new([point(r, "/ratio/p10"), point(r, "/ratio/p90")], color)
            }))?;
        chart.draw_series(
            mine().map(|r| Circle::new(point(r, "/ratio/median"), 3, color.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

fn table(rows: &[Row]) {
    println!("| peer | size | ours µs | peer µs | ratio | p10 | p90 | pairs | other CPU |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    for row in rows {
        println!(
            "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {} | {:.0}% |",
            row.peer,
            size_name(row.number("/bytes") as u64),
            row.number("/ours_us/median"),
            row.number("/peer_us/median"),
            row.number("/ratio/median"),
            row.number("/ratio/p10"),
            row.number("/ratio/p90"),
            row.number("/pairs"),
            row.number("/foreign_cpu_percent"),
        );
    }
    println!();
}

fn table_of_shares(rows: &[Row], rate: &Rate) {
    println!(
        "bus bandwidth on a link of {} as a share of it\n",
        rate.text
    );
    println!("| size | ours µs | ours | peer | peer's |");
    println!("|---:|---:|---:|---|---:|");
    for row in rows {
        println!(
            "| {} | {:.0} | {:.3} | {} | {:.3} |",
            size_name(row.number("/bytes") as u64),
            row.number("/ours_us/median"),
            row.share(rate, "ours"),
            row.peer,
            row.share(rate, "peer"),
        );
    }
    println!();
}

fn main() -> ExitCode {
    let options = Options::parse();
    let lib = options.lib.clone().unwrap_or_else(libflagos);
    if !options.machines && !options.peer.iter().any(|p| p == WAYS) {
        return match one_host(&options, lib) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        };
    }
    let dir = scratch("peers");
    let out = options.out.clone().unwrap_or_else(|| dir.clone());
    let mut rows = Vec::new();
    let mut shaped = Vec::new();
    let mut missing = Vec::new();
    let machines = match options.machines.then(Machines::new).transpose() {
        Ok(machines) => machines,
        Err(why) => {
            eprintln!("there can be no machines: {why}");
            return ExitCode::FAILURE;
        }
    };
    let before = Probe::take();
    let mut programs = Vec::new();
    for peer in PEERS.iter().filter(|p| options.keys().contains(&p.key)) {
        match build(peer, &dir) {
            Err(why) => missing.push(format!(
                "MISSING PEER: {} could not be built: {}\n  on Debian: {}",
                peer.key,
                why.trim(),
                peer.install
            )),
            Ok(program) => programs.push((peer, program)),
        }
    }
    let all = |block, rows: &mut Vec<Row>| {
        programs.iter().try_for_each(|(peer, program)| {
            eprintln!("comparing with {} ...", peer.key);
            let machines = machines.as_ref();
            let more = measure(peer, program, &lib, &options, &dir, machines, block);
            rows.extend(more.map_err(|why| format!("{}: {why}", peer.key))?);
            Ok::<(), String>(())
        })
    };
    let measured = all(options.block, &mut rows).and_then(|()| {
        if let (Some(machines), Some(rate)) = (&machines, &options.rate) {
            machines.shape(rate)?;
            all(options.block.max(Rate::BLOCK), &mut shaped)?;
        }
        Ok(())
    });
    if let Err(why) = measured {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    let after = Probe::take();
    let ranks = 2 * options.per_machine;
    let (name, places) = match (&machines, ranks) {
        (Some(_), 2) => (
            String::from("machines"),
            " on two machines (namespaces, TCP)",
        ),
        (Some(_), _) => (
            format!("machines-{ranks}"),
            " on two machines (namespaces, TCP)",
        ),
        (None, _) => (String::from("peers"), ""),
    };
    let title = format!(
        "all-reduce, float32 sum, {ranks} ranks{places}, {} cores, {}",
        cores(),
        date()
    );

    println!("\n{title}");
    println!(
        "{}; commit {}; before: cache line {:.0} ns, memcpy {:.1} GB/s; after: {:.0} ns, {:.1} GB/s",
        processor(),
        commit(),
        before.line_ns,
        before.memcpy_gbs,
        after.line_ns,
        after.memcpy_gbs
    );
    println!(
        "ratio = time of the peer / ours, over pairs of neighbouring blocks; above 1, ours is faster\n"
    );
    table(&rows);
    if let Some(rate) = &options.rate {
        table_of_shares(&shaped, rate);
    }

    let link = options.rate.as_ref().map(|rate| {
        let row = |r: &Row| {
            json!({
                "peer": r.peer,
                "share_of_the_link": {"ours": r.share(rate, "ours"), "peer": r.share(rate, "peer")},
                "result": r.data,
            })
        };
        json!({
            "rate": rate.text,
            "burst": Rate::BURST,
            "rows": shaped.iter().map(row).collect::<Vec<_>>(),
        })
    });
    let report = json!({
        "what": "flagosAllReduce on the host tier against peers, paired blocks; ratio is peer / ours",
        "machines": if machines.is_some() { 2 } else { 1 },
        "ranks": ranks,
        "date": date(),
        "commit": commit(),
        "processor": processor(),
        "cores": cores(),
        "before": before.json(),
        "after": after.json(),
        "missing": missing,
        "rows": rows.iter().map(|r| json!({"peer": r.peer, "result": r.data})).collect::<Vec<_>>(),
        "link": link,
    });
    let written = std::fs::create_dir_all(&out)
        .and_then(|()| std::fs::write(out.join(format!("{name}.json")), format!("{report:#}\n")));
    if let Err(error) = written {
        eprintln!("{}: {error}", out.display());
        return ExitCode::FAILURE;
    }
    println!("written: {}", out.join(format!("{name}.json")).display());
    if !rows.is_empty() {
        let svg = out.join(format!("{name}.svg"));
        let lower = options.rate.as_ref().map(|rate| (rate, &*shaped));
        if let Err(error) = plot(&svg, &rows, lower, &title) {
            eprintln!("{}: {error}", svg.display());
            return ExitCode::FAILURE;
        }
        println!("written: {}", svg.display());
    }
    for sentence in &missing {
        eprintln!("\n{sentence}");
    }
    let slower: Vec<&Row> = rows
        .iter()
        .filter(|r| {
            // A ratio that is no number has not passed.
            r.number("/ratio/median")
                .partial_cmp(&1.0)
                .is_none_or(|o| o.is_lt())
        })
        .collect();
    for row in &slower {
        eprintln!(
            "SLOWER: at {} than {}, ratio {:.2}",
            size_name(row.number("/bytes") as u64),
            row.peer,
            row.number("/ratio/median")
        );
    }
    let unused = options.rate.iter().any(|rate| {
        let (least, from) = Rate::LEAST;
        let large = |row: &&Row| row.number("/bytes") >= from;
        let enough = |row: &Row| row.share(rate, "ours") >= least;
        for row in shaped.iter().filter(large).filter(|row| !enough(row)) {
            eprintln!(
                "UNUSED LINK: at {} ours is {:.3} of {}",
                size_name(row.number("/bytes") as u64),
                row.share(rate, "ours"),
                rate.text
            );
        }
        !shaped.iter().filter(large).all(enough)
    });
    let failed = unused || !slower.is_empty() || !missing.is_empty();
    if rows.is_empty() || options.gate && failed {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
