//! Joining ranks that a launcher has started: torchrun, mpirun, srun or `flagos-comm launch`.
#![forbid(unsafe_code)]

use super::coord::{Coord, Link, get, put};
use crate::words::plural;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// What a launcher's environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Who speaks.
    pub launcher: &'static str,
    /// Rank of this process.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Rank among those on this machine, if told.
    pub local_rank: Option<usize>,
    /// Where rank 0 waits.
    pub meeting: Meeting,
}

/// Where the ranks find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Rank 0 listens on this host and the first of these ports that is free.
    Tcp(String, Vec<u16>),
    /// Rank 0 listens on this name in the abstract namespace of the one machine.
    Abstract(String),
}

/// Names of rank, size, local rank and the job of each launcher that is understood.
struct Names {
    launcher: &'static str,
    rank: &'static str,
    ranks: &'static [&'static str],
    local_rank: &'static [&'static str],
    job: &'static [&'static str],
    /// A variable that must be there, too.
    needs: Option<&'static str>,
}

const LAUNCHERS: [Names; 4] = [
    Names {
        launcher: "torchrun or flagos-comm launch",
        rank: "RANK",
        ranks: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        job: &["TORCHELASTIC_RUN_ID"],
        needs: None,
    },
    Names {
        launcher: "mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        job: &[
            "PMIX_NAMESPACE",
            "OMPI_MCA_ess_base_jobid",
            "OMPI_MCA_orte_ess_jobid",
        ],
        needs: None,
    },
    Names {
        launcher: "srun",
        rank: "SLURM_PROCID",
        ranks: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        // A batch script has the other variables, too, but is not a rank.
        needs: Some("SLURM_STEP_ID"),
    },
    Names {
        launcher: "mpirun",
        rank: "PMI_RANK",
        ranks: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        job: &["PMI_JOBID", "HYDRA_JOBID"],
        needs: None,
    },
];

/// Reads the environment. `Ok(None)`: no launcher.
///
/// # Errors
/// Which variable does not make sense.
pub fn detect(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launched>, String> {
    let present = |names: &&Names| {
        env(names.rank).is_some()
            && names.ranks.iter().any(|name| env(name).is_some())
            && names.needs.is_none_or(|name| env(name).is_some())
    };
    let Some(names) = LAUNCHERS.iter().find(present) else {
        return Ok(None);
    };
    let number = |name: &str| -> Result<Option<usize>, String> {
        env(name)
            .map(|text| {
                text.trim()
                    .parse()
                    .map_err(|_| format!("{name}='{text}' is not a number"))
            })
            .transpose()
    };
    let first = |candidates: &[&str]| -> Result<Option<usize>, String> {
        candidates
            .iter()
            .find(|name| env(name).is_some())
            .map_or(Ok(None), |name| number(name))
    };
    let rank = number(names.rank)?.unwrap_or(0);
    let ranks = first(names.ranks)?.unwrap_or(0);
    if rank >= ranks {
        return Err(format!(
            "{}={rank} is not below {}={ranks}",
            names.rank, names.ranks[0]
        ));
    }
    let meeting = match env("MASTER_ADDR") {
        Some(host) => {
            let text = env("MASTER_PORT").ok_or("MASTER_ADDR is set but MASTER_PORT is not")?;
            let port: u16 = text
                .parse()
                .map_err(|_| format!("MASTER_PORT='{text}' is not a port"))?;
            // torchrun's agent listens on MASTER_PORT itself; the ranks take the next one.
            let agent =
                env("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|v| v == "True" || v == "1");
            let next = port.checked_add(1);
            let ports = if agent { None } else { Some(port) };
            if ports.or(next).is_none() {
                return Err(format!(
                    "MASTER_PORT={port} is torchrun's own, and there is no port after it for the ranks"
                ));
            }
            Meeting::Tcp(host, ports.into_iter().chain(next).collect())
        }
        None => {
            let nodes = env("SLURM_STEP_NUM_NODES").or_else(|| env("SLURM_NNODES"));
            if nodes.as_deref().is_some_and(|nodes| nodes != "1") {
                return Err(
                    "the job spans several machines: set MASTER_ADDR and MASTER_PORT to an \
                            address of rank 0's machine and a free port"
                        .to_owned(),
                );
            }
            let job: Vec<String> = names.job.iter().filter_map(|name| env(name)).collect();
            let job = if job.is_empty() {
                // All ranks of one launcher on one machine are its children.
                format!("parent-{}", std::os::unix::process::parent_id())
            } else {
                job.join(".")
            };
            Meeting::Abstract(format!("flagos-comm-perf.{}.{job}", crate::sys::user_id()))
        }
    };
    Ok(Some(Launched {
        launcher: names.launcher,
        rank,
        ranks,
        local_rank: first(names.local_rank)?,
        meeting,
    }))
}

/// First message of each side.
const HELLO: &[u8] = b"flagos-comm perf 1";

/// Meets the other ranks.
///
/// # Errors
/// Where rank 0 waited and which ranks did not come, or where it was not found.
pub fn meet(launched: &Launched, timeout: Duration) -> Result<Coord, String> {
    let deadline = Instant::now() + timeout;
    if launched.ranks == 1 {
        return Ok(Coord::new(0, Vec::new()));
    }
    if launched.rank == 0 {
        wait_for_all(launched, deadline)
    } else {
        find_hub(launched, deadline)
    }
}

/// Which ports of MASTER_ADDR the ranks meet on.
fn ways(ports: &[u16]) -> String {
    match ports {
        [first, next] => format!(
            "The ranks meet at MASTER_ADDR on port {first} (MASTER_PORT), or on {next}, the one after it, where the first \
             is taken: one of them has to be free and open between the machines"
        ),
        [port] => format!(
            "The ranks meet at MASTER_ADDR on port {port}, the one after MASTER_PORT, where torchrun itself listens: it has \
             to be free and open between the machines"
        ),
        _ => "The ranks meet at MASTER_ADDR on MASTER_PORT or the port after it, and there is none"
            .to_owned(),
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

fn listen(meeting: &Meeting) -> Result<Listener, String> {
    match meeting {
        Meeting::Abstract(name) => {
            let address = SocketAddr::from_abstract_name(name).map_err(|e| e.to_string())?;
            let listener = UnixListener::bind_addr(&address)
                .map_err(|e| format!("can't listen on the socket @{name}: {e}"))?;
            listener.set_nonblocking(true).map_err(|e| e.to_string())?;
            Ok(Listener::Unix(listener))
        }
        Meeting::Tcp(host, ports) => {
            let mut last = String::new();
            for port in ports {
                match TcpListener::bind((host.as_str(), *port)) {
                    Ok(listener) => {
                        listener.set_nonblocking(true).map_err(|e| e.to_string())?;
                        return Ok(Listener::Tcp(listener));
                    }
                    Err(error) => last = format!("{host}:{port}: {error}"),
                }
            }
            Err(format!("rank 0 can't listen: {last}. {}", ways(ports)))
        }
    }
}

impl Listener {
    fn accept(&self) -> io::Result<Link> {
        Ok(match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                Link::Tcp(stream)
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                if !crate::sys::same_user(&stream) {
                    return Err(io::Error::from(ErrorKind::Interrupted));
                }
                stream.set_nonblocking(false)?;
                Link::Unix(stream)
            }
        })
    }
}

fn limit(link: &Link, limit: Option<Duration>) -> io::Result<()> {
    match link {
        Link::Tcp(stream) => stream.set_read_timeout(limit),
        Link::Unix(stream) => stream.set_read_timeout(limit),
    }
}

/// How long a connection has to say who it is.
const GREETING: Duration = Duration::from_secs(2);

fn wait_for_all(launched: &Launched, deadline: Instant) -> Result<Coord, String> {
    let listener = listen(&launched.meeting)?;
    let mut links: Vec<Option<Link>> = (1..launched.ranks).map(|_| None).collect();
    while links.iter().any(Option::is_none) {
        match listener.accept() {
            Ok(mut link) => {
                // A stranger is let go; its rank, if it was one, asks again.
                if let Ok(Some(rank)) = greet(&mut link, launched.ranks)
                    && links[rank - 1].is_none()
                {
                    links[rank - 1] = Some(link);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if Instant::now() > deadline {
                    let missing: Vec<String> = links
                        .iter()
                        .enumerate()
                        .filter(|(_, link)| link.is_none())
                        .map(|(i, _)| (i + 1).to_string())
                        .collect();
                    let which = match &launched.meeting {
                        Meeting::Abstract(_) => String::new(),
                        Meeting::Tcp(_, ports) => format!(". {}", ways(ports)),
                    };
                    return Err(format!(
                        "rank{} {} did not come in time{which}",
                        plural(missing.len()),
                        missing.join(", ")
                    ));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("waiting for the other ranks: {error}")),
        }
    }
    Ok(Coord::new(0, links.into_iter().flatten().collect()))
}

fn greet(link: &mut Link, ranks: usize) -> io::Result<Option<usize>> {
    limit(link, Some(GREETING))?;
    let mut hello = vec![0; HELLO.len() + 16];
    io::Read::read_exact(link, &mut hello)?;
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&hello[at..at + 8]);
        u64::from_le_bytes(bytes) as usize
    };
    let (rank, size) = (word(HELLO.len()), word(HELLO.len() + 8));
    if !hello.starts_with(HELLO) || size != ranks || rank == 0 || rank >= ranks {
        return Ok(None);
    }
    put(link, HELLO)?;
    limit(link, None)?;
    Ok(Some(rank))
}

fn find_hub(launched: &Launched, deadline: Instant) -> Result<Coord, String> {
    let mut why = String::new();
    while Instant::now() < deadline {
        match try_hub(launched) {
            Ok(link) => return Ok(Coord::new(launched.rank, vec![link])),
            Err(error) => why = error,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(format!(
        "rank {} does not find rank 0: {why}",
        launched.rank
    ))
}

fn try_hub(launched: &Launched) -> Result<Link, String> {
    let mut hello = HELLO.to_vec();
    hello.extend_from_slice(&(launched.rank as u64).to_le_bytes());
    hello.extend_from_slice(&(launched.ranks as u64).to_le_bytes());
    let say = |mut link: Link| -> io::Result<Link> {
        limit(&link, Some(GREETING))?;
        io::Write::write_all(&mut link, &hello)?;
        if get(&mut link)? != HELLO {
            return Err(io::Error::other("it is another program"));
        }
        limit(&link, None)?;
        Ok(link)
    };
    match &launched.meeting {
        Meeting::Abstract(name) => SocketAddr::from_abstract_name(name)
            .and_then(|address| UnixStream::connect_addr(&address))
            .and_then(|stream| say(Link::Unix(stream)))
            .map_err(|error| format!("socket @{name}: {error}")),
        Meeting::Tcp(host, ports) => {
            let mut why = String::new();
            for port in ports {
                let connected = (host.as_str(), *port)
                    .to_socket_addrs()
                    .and_then(|mut all| {
                        all.find_map(|a| TcpStream::connect_timeout(&a, GREETING).ok())
                            .ok_or_else(|| io::Error::other("nobody answers"))
                    })
                    .and_then(|stream| {
                        stream.set_nodelay(true)?;
                        say(Link::Tcp(stream))
                    });
                match connected {
                    Ok(link) => return Ok(link),
                    Err(error) => {
                        if !why.is_empty() {
                            why += "; ";
                        }
                        why += &format!("{host}:{port}: {error}");
                    }
                }
            }
            Err(format!("{why}. {}", ways(ports)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> Result<Option<Launched>, String> {
        detect(&|name| {
            vars.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn launchers_are_told_apart() {
        assert_eq!(with(&[("HOME", "x")]), Ok(None));
        let torch = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
        ];
        let found = with(&torch).unwrap().unwrap();
        assert_eq!((found.rank, found.ranks, found.local_rank), (1, 2, Some(1)));
        assert_eq!(
            found.meeting,
            Meeting::Tcp("127.0.0.1".to_owned(), vec![29500, 29501])
        );
        let agent = [
            torch.as_slice(),
            &[("TORCHELASTIC_USE_AGENT_STORE", "True")],
        ]
        .concat();
        assert_eq!(
            with(&agent).unwrap().unwrap().meeting,
            Meeting::Tcp("127.0.0.1".to_owned(), vec![29501])
        );
        let ompi = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("PMIX_NAMESPACE", "job7"),
        ];
        let found = with(&ompi).unwrap().unwrap();
        assert_eq!((found.launcher, found.ranks), ("mpirun", 4));
        assert!(matches!(found.meeting, Meeting::Abstract(name) if name.ends_with(".job7")));
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")];
        assert_eq!(with(&batch), Ok(None));
        let step = [
            batch.as_slice(),
            &[("SLURM_STEP_ID", "0"), ("SLURM_NNODES", "2")],
        ]
        .concat();
        assert!(with(&step).unwrap_err().contains("MASTER_ADDR"));
    }

    #[test]
    fn nonsense_is_named() {
        assert!(
            with(&[("RANK", "x"), ("WORLD_SIZE", "2")])
                .unwrap_err()
                .contains("RANK='x'")
        );
        assert!(
            with(&[("RANK", "2"), ("WORLD_SIZE", "2")])
                .unwrap_err()
                .contains("not below")
        );
    }

    #[test]
    fn errors_say_on_which_ports_the_ranks_meet() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let launched = |rank, ports: &[u16]| Launched {
            launcher: "test",
            rank,
            ranks: 2,
            local_rank: None,
            meeting: Meeting::Tcp("127.0.0.1".to_owned(), ports.to_vec()),
        };
        let soon = Duration::from_millis(50);
        let after =
            format!("port {port}, the one after MASTER_PORT, where torchrun itself listens");
        let error = meet(&launched(0, &[port]), soon).err().unwrap();
        assert!(
            error.contains("can't listen") && error.contains(&after),
            "{error}"
        );
        drop(taken);
        for (rank, ports, words) in [
            (0, &[port][..], "rank 1 did not come in time"),
            (1, &[port], "rank 1 does not find rank 0"),
        ] {
            let error = meet(&launched(rank, ports), soon).err().unwrap();
            assert!(error.contains(words) && error.contains(&after), "{error}");
        }
        let error = meet(&launched(1, &[port, port + 1]), soon).err().unwrap();
        for words in [
            format!("127.0.0.1:{port}: "),
            format!("127.0.0.1:{}: ", port + 1),
            format!("on port {port} (MASTER_PORT), or on {}", port + 1),
        ] {
            assert!(error.contains(&words), "{words}: {error}");
        }
    }

    #[test]
    fn ranks_meet_on_the_second_port_if_the_first_is_taken() {
        // A listener that answers nothing sensible, as torchrun's store would.
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        std::thread::spawn(move || while taken.accept().is_ok() {});
        let launched = |rank| Launched {
            launcher: "test",
            rank,
            ranks: 3,
            local_rank: None,
            meeting: Meeting::Tcp("127.0.0.1".to_owned(), vec![port, port + 1]),
        };
        let threads: Vec<_> = (0..3)
            .map(|rank| {
                let launched = launched(rank);
                std::thread::spawn(move || {
                    let mut coord = meet(&launched, Duration::from_secs(20)).unwrap();
                    coord.all_gather(vec![rank as u8]).unwrap()
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), [[0], [1], [2]]);
        }
    }
}
