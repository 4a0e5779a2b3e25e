//! Child processes that live and die together.
//!
//! Every child leads a process group of its own, so that what it starts can be ended with it.
//! Three things end them: this process on the first failure or on a signal, the kernel's
//! parent-death signal, and a keeper process that outlives even a SIGKILL of this process.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Signals that are passed on to the children.
const FORWARDED: [i32; 6] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// Those of them that end the run.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// How long the children get at the end.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// After the first failure: time for the others to notice and say what they saw.
    pub settle: Duration,
    /// After SIGTERM: time until SIGKILL.
    pub term: Duration,
}

/// Which of its two outputs a child wrote to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// How the run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The child that failed first, and how. A death by a signal that was not ours counts as
    /// earlier than an exit code: the others notice it before this process can.
    pub first_failure: Option<(usize, ExitStatus)>,
    /// The signal that ended the run, if it was one that this process got.
    pub signal: Option<i32>,
}

impl Outcome {
    /// Exit code for this process: the first failure's (128 + n for signal n), else 128 + n for
    /// the signal that ended the run, else 0.
    pub fn code(&self) -> u8 {
        let code = match (&self.signal, &self.first_failure) {
            (Some(signal), _) => 128 + signal,
            (None, Some((_, status))) => match status.code() {
                Some(code) => code,
                None => 128 + status.signal().unwrap_or(0),
            },
            (None, None) => 0,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

struct Child {
    rank: usize,
    pid: i32,
    status: Option<ExitStatus>,
}

struct Pipe {
    rank: usize,
    source: Source,
    fd: OwnedFd,
}

/// The children.
pub struct Family {
    children: Vec<Child>,
    pipes: Vec<Pipe>,
    signals: OwnedFd,
    keeper: Keeper,
    patience: Patience,
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn send(group: i32, signal: i32) {
    // SAFETY: plain system call; the group is one of ours, held by an unreaped leader.
    unsafe { libc::killpg(group, signal) };
}

impl Family {
    /// An empty family. Blocks the signals that it handles, so it comes before any thread.
    ///
    /// # Errors
    /// What the operating system refuses.
    pub fn new(patience: Patience) -> io::Result<Family> {
        // SAFETY: the set is initialised by sigemptyset before use.
        let signals = unsafe {
            // Whoever started this process may have asked not to hear of its children.
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(&mut set, signal);
            }
            let code = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if code != 0 {
                return Err(io::Error::from_raw_os_error(code));
            }
            OwnedFd::from_raw_fd(check(libc::signalfd(
                -1,
                &set,
                libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
            ))?)
        };
        Ok(Family {
            children: Vec::new(),
            pipes: Vec::new(),
            signals,
            keeper: Keeper::start()?,
            patience,
        })
    }

    /// Starts a child. With `capture` its outputs come to the sink of [`Family::run`]. The
    /// descriptors in `inherit` stay open in it.
    ///
    /// # Errors
    /// What the operating system refuses, such as a program that does not exist.
    pub fn spawn(
        &mut self,
        rank: usize,
        command: &mut Command,
        capture: bool,
        inherit: &[RawFd],
    ) -> io::Result<()> {
        if capture {
            command.stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::piped());
        }
        command.process_group(0);
        let parent = std::process::id() as i32;
        let inherit = inherit.to_vec();
        // SAFETY: only async-signal-safe calls, and the vector is not changed or freed.
        unsafe {
            command.pre_exec(move || {
                let mut none = std::mem::zeroed();
                libc::sigemptyset(&mut none);
                libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
                check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
                if libc::getppid() != parent {
                    libc::_exit(1);
                }
                for fd in &inherit {
                    check(libc::fcntl(*fd, libc::F_SETFD, 0))?;
                }
                Ok(())
            });
        }
        let mut child = command.spawn()?;
        let pid = child.id() as i32;
        self.keeper.tell(pid);
        let out = child.stdout.take().map(|p| (Source::Out, OwnedFd::from(p)));
        let err = child.stderr.take().map(|p| (Source::Err, OwnedFd::from(p)));
        for (source, fd) in out.into_iter().chain(err) {
            // SAFETY: the descriptor is open.
            check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
            self.pipes.push(Pipe { rank, source, fd });
        }
        self.children.push(Child {
            rank,
            pid,
            status: None,
        });
        Ok(())
    }

    /// Runs until every child has ended. The first failure, or a signal that ends the run, ends
    /// the others too. `sink` gets what captured children write.
    ///
    /// # Errors
    /// What the operating system refuses; the children are ended then, too.
    pub fn run(&mut self, sink: &mut dyn FnMut(usize, Source, &[u8])) -> io::Result<Outcome> {
        let mut outcome = Outcome {
            first_failure: None,
            signal: None,
        };
        let mut stop: Option<Stop> = None;
        loop {
            let settling = stop.as_ref().is_none_or(|stop| !stop.termed);
            self.reap(&mut outcome, settling)?;
            if outcome.first_failure.is_some() && stop.is_none() {
                stop = Some(Stop::settle(self.patience));
            }
            let alive = self.children.iter().any(|child| child.status.is_none());
            if !alive {
                break;
            }
            if let Some(stop) = &mut stop
                && let Some(signal) = stop.due(self.patience)
            {
                self.signal(signal);
            }
            self.wait(stop.as_ref().map(|stop| stop.next), sink)?;
            while let Some(signal) = self.next_signal() {
                self.signal(signal);
                if ENDING.contains(&signal) {
                    if outcome.signal.is_some() {
                        self.signal(libc::SIGKILL);
                    }
                    outcome.signal = Some(signal);
                    stop = Some(Stop::term(self.patience));
                }
            }
        }
        // What is still in the pipes; what a stray grandchild holds open is not waited for.
        self.drain(sink);
        Ok(outcome)
    }

    fn signal(&self, signal: i32) {
        for child in self.children.iter().filter(|child| child.status.is_none()) {
            send(child.pid, signal);
        }
    }

    /// Takes the status of children that have ended, and ends what they left behind. While
    /// `settling`, this process has not signalled any of them.
    fn reap(&mut self, outcome: &mut Outcome, settling: bool) -> io::Result<()> {
        for child in self.children.iter_mut().filter(|c| c.status.is_none()) {
            // SAFETY: zero is a valid siginfo_t, and the calls write into locals.
            unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                check(libc::waitid(
                    libc::P_PID,
                    child.pid as u32,
                    &mut info,
                    libc::WEXITED | libc::WNOHANG | libc::WNOWAIT,
                ))?;
                if info.si_pid() != child.pid {
                    continue;
                }
                // The leader is not reaped yet, so its number can't belong to anybody else.
                send(child.pid, libc::SIGKILL);
                let mut status = 0;
                check(libc::waitpid(child.pid, &mut status, 0))?;
                let status = ExitStatus::from_raw(status);
                child.status = Some(status);
                self.keeper.tell(-child.pid);
                let earlier = outcome.first_failure.is_none_or(|(_, first)| {
                    settling && first.signal().is_none() && status.signal().is_some()
                });
                if !status.success() && earlier {
                    outcome.first_failure = Some((child.rank, status));
                }
            }
        }
        Ok(())
    }

    /// Waits for a signal, output or the deadline.
    fn wait(
        &mut self,
        deadline: Option<Instant>,
        sink: &mut dyn FnMut(usize, Source, &[u8]),
    ) -> io::Result<()> {
        let fds = self.pipes.iter().map(|pipe| pipe.fd.as_raw_fd());
        let mut polls: Vec<libc::pollfd> = std::iter::once(self.signals.as_raw_fd())
            .chain(fds)
            .map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        let timeout = deadline.map_or(-1, |at| {
            at.saturating_duration_since(Instant::now()).as_millis() as i32 + 1
        });
        // SAFETY: the vector holds as many entries as said.
        let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, timeout) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        if polls[1..].iter().any(|poll| poll.revents != 0) {
            self.drain(sink);
        }
        Ok(())
    }

    /// Reads what is there from every pipe, and drops those at their end.
    fn drain(&mut self, sink: &mut dyn FnMut(usize, Source, &[u8])) {
        let mut buffer = [0u8; 16384];
        self.pipes.retain(|pipe| {
            loop {
                // SAFETY: the buffer is as long as said.
                let n = unsafe {
                    libc::read(
                        pipe.fd.as_raw_fd(),
                        buffer.as_mut_ptr().cast(),
                        buffer.len(),
                    )
                };
                if n > 0 {
                    sink(pipe.rank, pipe.source, &buffer[..n as usize]);
                } else if n == 0 {
                    return false;
                } else {
                    let kind = io::Error::last_os_error().kind();
                    if kind != io::ErrorKind::Interrupted {
                        return kind == io::ErrorKind::WouldBlock;
                    }
                }
            }
        });
    }

    fn next_signal(&self) -> Option<i32> {
        loop {
            // SAFETY: zero is a valid signalfd_siginfo, and the read is as long as it.
            let info = unsafe {
                let mut info: libc::signalfd_siginfo = std::mem::zeroed();
                let size = size_of::<libc::signalfd_siginfo>();
                let n = libc::read(self.signals.as_raw_fd(), (&raw mut info).cast(), size);
                (n == size as isize).then_some(info)
            }?;
            if info.ssi_signo as i32 != libc::SIGCHLD {
                return Some(info.ssi_signo as i32);
            }
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        for child in self.children.iter().filter(|child| child.status.is_none()) {
            send(child.pid, libc::SIGKILL);
            // SAFETY: the child is ours and not reaped.
            unsafe { libc::waitpid(child.pid, std::ptr::null_mut(), 0) };
            self.keeper.tell(-child.pid);
        }
    }
}

/// Where the ending of a run stands.
struct Stop {
    next: Instant,
    termed: bool,
}

impl Stop {
    fn settle(patience: Patience) -> Stop {
        Stop {
            next: Instant::now() + patience.settle,
            termed: false,
        }
    }

    fn term(patience: Patience) -> Stop {
        Stop {
            next: Instant::now() + patience.term,
            termed: true,
        }
    }

    /// The signal to send now, if it is time.
    fn due(&mut self, patience: Patience) -> Option<i32> {
        if Instant::now() < self.next {
            return None;
        }
        let signal = if self.termed {
            libc::SIGKILL
        } else {
            libc::SIGTERM
        };
        *self = Stop::term(patience);
        Some(signal)
    }
}

/// The most process groups that a keeper can hold.
const KEPT: usize = 8192;

/// A process that does nothing but wait for this one to end in any way, and then ends the
/// process groups that are still there.
struct Keeper {
    pid: i32,
    pipe: Option<OwnedFd>,
}

impl Keeper {
    fn start() -> io::Result<Keeper> {
        let mut ends = [0; 2];
        let mut groups = vec![0i32; KEPT];
        // SAFETY: the array has room for two descriptors.
        let (read, write) = unsafe {
            check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        // SAFETY: the child makes only async-signal-safe calls on memory that exists already.
        let pid = unsafe {
            let pid = check(libc::fork())?;
            if pid == 0 {
                keep(read.as_raw_fd(), write.as_raw_fd(), &mut groups);
            }
            pid
        };
        Ok(Keeper {
            pid,
            pipe: Some(write),
        })
    }

    /// A positive number is a new group, its negative says that the group is gone.
    fn tell(&self, group: i32) {
        if let Some(pipe) = &self.pipe {
            let word = group.to_ne_bytes();
            // SAFETY: the word is as long as said. A keeper that is gone is not missed:
            // the parent-death signal is still there (and SIGPIPE is ignored).
            unsafe { libc::write(pipe.as_raw_fd(), word.as_ptr().cast(), word.len()) };
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.pipe = None;
        // SAFETY: the keeper is our child; it ends when the pipe does.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// The keeper's life. Runs in a forked child: no allocation, no locks.
///
/// # Safety
/// Only in a child that owns both descriptors.
unsafe fn keep(read: RawFd, write: RawFd, groups: &mut [i32]) -> ! {
    // SAFETY: async-signal-safe system calls on memory of this process.
    unsafe {
        // Ctrl-C goes to the terminal's foreground group; the keeper must outlive it. Signals are
        // blocked already.
        libc::setsid();
        for fd in 0..1024 {
            if fd != read {
                libc::close(fd);
            }
        }
        let _ = write;
        loop {
            let mut word = 0i32;
            let n = libc::read(read, (&raw mut word).cast(), 4);
            if n != 4 {
                break;
            }
            let (find, put) = if word > 0 { (0, word) } else { (-word, 0) };
            if let Some(slot) = groups.iter_mut().find(|slot| **slot == find) {
                *slot = put;
            }
        }
        for group in groups.iter() {
            if *group != 0 {
                libc::killpg(*group, libc::SIGKILL);
            }
        }
        libc::_exit(0)
    }
}

/// A sentence about how a process ended.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal} ({})", signal_name(signal)),
        (None, None) => format!("ended: {status}"),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGINT => "SIGINT",
        libc::SIGTERM => "SIGTERM",
        libc::SIGHUP => "SIGHUP",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGBUS => "SIGBUS",
        libc::SIGABRT => "SIGABRT",
        libc::SIGFPE => "SIGFPE",
        libc::SIGILL => "SIGILL",
        libc::SIGPIPE => "SIGPIPE",
        _ => "no common name",
    }
}
