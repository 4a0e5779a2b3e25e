//! Which processors this process may use.

/// Words of a [`Cpus`]: room for 1024 processors, as in `cpu_set_t`.
pub(crate) const CPU_WORDS: usize = 16;

/// Words of the largest set that a kernel may have.
const KERNEL_WORDS: usize = 1024;

/// A set of processors, a bit for each; on larger machines for each that have the same number modulo 1024.
pub(crate) type Cpus = [u64; CPU_WORDS];

/// The processors on which the calling thread may run; empty if the kernel does not say.
pub(crate) fn allowed() -> Cpus {
    let mut all = [0; KERNEL_WORDS];
    // SAFETY: the kernel writes at most the given number of bytes to the array.
    let got = unsafe { libc::sched_getaffinity(0, size_of_val(&all), (&raw mut all).cast()) };
    if got == 0 {
        folded(&all)
    } else {
        [0; CPU_WORDS]
    }
}

/// A set of any size as one of ours.
fn folded(all: &[u64]) -> Cpus {
    let mut cpus = [0; CPU_WORDS];
    for (at, word) in all.iter().enumerate() {
        cpus[at % CPU_WORDS] |= word;
    }
    cpus
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
    fn processors_beyond_a_set_count_too() {
        let mut all = vec![0u64; KERNEL_WORDS];
        (all[3], all[CPU_WORDS + 3], all[CPU_WORDS + 4]) = (0b1, 0b10, 0b100);
        assert_eq!(count(&folded(&all)), 3);
        assert_eq!(folded(&all)[3..5], [0b11, 0b100]);
    }

    #[test]
    fn this_thread_may_run_somewhere() {
        let cpus = allowed();
        assert!(count(&cpus) >= 1);
        assert!(quota(&cpus).is_none_or(|quota| quota >= 1));
    }
}
