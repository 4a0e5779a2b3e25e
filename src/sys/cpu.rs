//! Which processors this process may use.

/// Words of a [`Cpus`]: room for 1024 processors, as in `cpu_set_t`.
pub(crate) const CPU_WORDS: usize = 16;

/// A set of processors, a bit for each.
pub(crate) type Cpus = [u64; CPU_WORDS];

/// The processors on which the calling thread may run; empty if the kernel does not say.
pub(crate) fn allowed() -> Cpus {
    let mut cpus = [0; CPU_WORDS];
    // SAFETY: the kernel writes at most the given number of bytes to the array.
    let got = unsafe { libc::sched_getaffinity(0, size_of::<Cpus>(), (&raw mut cpus).cast()) };
    if got == 0 { cpus } else { [0; CPU_WORDS] }
}

/// How many processors are in a set.
pub(crate) fn count(cpus: &Cpus) -> usize {
    cpus.iter().map(|word| word.count_ones() as usize).sum()
}

/// How many processors' worth of time this process gets, if a control group gives it less than the
/// set that it may run on.
pub(crate) fn quota(allowed: &Cpus) -> Option<usize> {
    let parallelism = std::thread::available_parallelism().ok()?.get();
    (parallelism < count(allowed)).then_some(parallelism)
}

/// The processor on which the calling thread runs, plus one; 0 if the kernel does not say. It may run on another at once.
pub(crate) fn current() -> u32 {
    // SAFETY: the call takes nothing and touches no memory of ours.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).map_or(0, |cpu| cpu + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_may_run_somewhere() {
        let cpus = allowed();
        assert!(count(&cpus) >= 1);
        assert!(quota(&cpus).is_none_or(|quota| quota >= 1));
    }
}
