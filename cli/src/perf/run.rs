//! Runs the work on the ranks of one participant, in step with the others.
#![forbid(unsafe_code)]

use super::args::{InPlace, PerfArgs, Work};
use super::local::{Locals, Passing, Ready};
use super::operation::{Operation, Reduction};
use super::output::Output;
use super::reference::{Case, Mismatches, Pattern};
use super::report::{CheckLine, Measure, Row};
use super::watch::Watch;
use crate::ranks::coord::Coord;
use crate::words::plural;
use flagos_comm::{Code, DataType, Error};
use serde_json::{Value, json};
use std::time::Instant;

/// Aim for the timed calls of a row.
const ROW_SECONDS: f64 = 0.05;

/// The run of one participant.
pub struct Run<'a> {
    /// Arguments.
    pub args: &'a PerfArgs,
    /// What they resolve to.
    pub work: &'a Work,
    /// Number of ranks.
    pub ranks: usize,
    /// The other participants.
    pub coord: &'a mut Coord,
    /// The ranks of this one.
    pub locals: &'a mut Locals,
    /// Whether the tier is the host tier, which promises more.
    pub host_tier: bool,
    /// Whether a barrier is put on a stream of our own; with a vendor's the call waits.
    pub queued_barrier: bool,
    /// Whether all ranks are on one machine.
    pub one_machine: bool,
    /// Whether sums are rounded once; between machines those of each machine may be rounded before.
    pub rounds_once: bool,
    /// What this participant is doing, for the time limit.
    pub watch: &'a Watch,
    /// Where participant 0 writes.
    pub output: &'a mut Output,
}

/// What became of a call: done, or the tier can't do it.
enum Tried<T> {
    Done(T),
    Unsupported(String),
}

/// The largest number of bytes that an operand of the run has.
pub fn largest_operand(args: &PerfArgs, work: &Work, ranks: usize) -> usize {
    let mut largest = 0;
    let mut see = |operation: Operation, count: usize, size: usize| {
        for rank in 0..ranks {
            let send = operation.send_elements(count, ranks, rank);
            let recv = operation.recv_elements(count, ranks, rank);
            largest = largest.max(send.max(recv) * size);
        }
    };
    for operation in &work.operations {
        for dtype in &work.dtypes {
            for size in &work.sizes {
                see(
                    *operation,
                    operation.count(size / dtype.size(), ranks),
                    dtype.size(),
                );
            }
        }
        if args.checks() {
            for count in &args.check_counts {
                see(*operation, *count, 8);
            }
        }
    }
    largest
}

fn explain(error: &Error, what: &str) -> String {
    format!("{what}: {} ({:?})", error.text(), error.code())
}

impl Run<'_> {
    /// Measures every row.
    ///
    /// # Errors
    /// A sentence about the first call that failed.
    pub fn rows(&mut self) -> Result<Vec<Row>, String> {
        let mut rows = Vec::new();
        for operation in self.work.operations.clone() {
            let barrier = operation == Operation::Barrier;
            let first = |n: usize| if barrier { 1 } else { n };
            let dtypes = self.work.dtypes[..first(self.work.dtypes.len())].to_vec();
            let sizes = self.work.sizes[..first(self.work.sizes.len())].to_vec();
            for dtype in dtypes {
                for reduction in self.reductions(operation, dtype, &self.work.reductions) {
                    for root in self.roots(operation, &self.work.roots) {
                        for size in &sizes {
                            let count = operation.count(size / dtype.size(), self.ranks);
                            let mut case = self.case(operation, dtype, reduction, count);
                            case.root = root;
                            if self.is_in_vain()? {
                                return Ok(rows);
                            }
                            rows.push(self.row(case)?);
                        }
                    }
                }
            }
        }
        Ok(rows)
    }

    /// Whether all that comes out is the table, and nobody reads it any more. All ranks get the same
    /// answer, so that they end together.
    fn is_in_vain(&mut self) -> Result<bool, String> {
        let table_only =
            !self.args.checks() && self.args.json.is_none() && self.args.plot.is_none();
        let closed = self.output.closed();
        Ok(table_only && self.share(json!(closed))? == json!(true))
    }

    /// The operators to run an operation with: one that is not used where it does not reduce,
    /// none for a type that only moves.
    fn reductions(&self, op: Operation, dtype: DataType, all: &[Reduction]) -> Vec<Reduction> {
        match (op.reduces(), dtype.is_float8()) {
            (false, _) => vec![Reduction::Builtin(flagos_comm::RedOp::Sum)],
            (true, true) => Vec::new(),
            (true, false) => all.to_vec(),
        }
    }

    fn roots(&self, operation: Operation, all: &[usize]) -> Vec<usize> {
        if operation.rooted() {
            all.to_vec()
        } else {
            vec![0]
        }
    }

    fn case(&self, op: Operation, dtype: DataType, reduction: Reduction, count: usize) -> Case {
        Case {
            operation: op,
            dtype,
            reduction,
            root: 0,
            count,
            ranks: self.ranks,
            pattern: Pattern::Exact,
            seed: 1,
            rounds_once: self.rounds_once,
        }
    }

    fn ways(&self, operation: Operation) -> Vec<bool> {
        let all = match self.args.in_place {
            InPlace::Out => vec![false],
            InPlace::In => vec![true],
            InPlace::Both => vec![false, true],
        };
        let fits = |in_place: &bool| !in_place || operation.in_place();
        all.into_iter().filter(fits).collect()
    }

    fn row(&mut self, case: Case) -> Result<Row, String> {
        let operation = case.operation;
        let mut row = Row {
            operation,
            count: case.count,
            dtype: case.dtype,
            reduction: operation.reduces().then_some(case.reduction),
            root: operation.rooted().then_some(case.root),
            out_of_place: None,
            in_place: None,
            unsupported: None,
        };
        for in_place in self.ways(operation) {
            let passing = Passing {
                in_place,
                null_unused: false,
                shift: 0,
            };
            match self.measure(case, passing)? {
                Tried::Done(measure) if in_place => row.in_place = Some(measure),
                Tried::Done(measure) => row.out_of_place = Some(measure),
                Tried::Unsupported(why) => row.unsupported = Some(why),
            }
        }
        if row.out_of_place.is_some() || row.in_place.is_some() || row.unsupported.is_some() {
            self.output.line(&row.line(self.ranks))?;
        }
        self.output.advance();
        Ok(row)
    }

    /// Sets a case up, runs it once, and looks at what came out if asked to.
    fn try_once(
        &mut self,
        case: Case,
        passing: Passing,
        found: Option<&mut Mismatches>,
    ) -> Result<Tried<(Ready, Vec<u64>)>, String> {
        let what = case.describe();
        self.watch.step(&what);
        if case.operation == Operation::Barrier && self.locals.several() && !self.queued_barrier {
            let why = "one thread can't wait in several barriers at once".to_owned();
            return Ok(Tried::Unsupported(why));
        }
        let refused = |error: Error| match error.code() {
            // Everything that this tool asks for exists on the host tier.
            Code::NotSupported if !self.host_tier => {
                Ok(Tried::Unsupported(error.text().to_owned()))
            }
            _ => Err(explain(&error, &what)),
        };
        let ready = match self.locals.prepare(case, passing) {
            Ok(ready) => ready,
            Err(error) => return refused(error),
        };
        let run = self
            .locals
            .issue(&ready)
            .and_then(|()| self.locals.synchronize());
        if let Err(error) = run {
            self.locals.release(ready);
            return refused(error);
        }
        let digests = match found {
            Some(found) => self
                .locals
                .verify(&ready, found)
                .map_err(|e| explain(&e, &what))?,
            None => Vec::new(),
        };
        Ok(Tried::Done((ready, digests)))
    }

    fn measure(&mut self, case: Case, passing: Passing) -> Result<Tried<Measure>, String> {
        let mut found = Mismatches::default();
        let check = self.args.checks();
        let skewed = check && case.operation == Operation::Barrier;
        // A barrier is checked by its times: nobody may leave before everybody has entered.
        if skewed {
            let millis = self.coord.index() as u64 * 3 % 10;
            std::thread::sleep(std::time::Duration::from_millis(millis));
        }
        let entered = crate::sys::shared_clock();
        let started = Instant::now();
        let tried = self.try_once(case, passing, check.then_some(&mut found))?;
        let trial = started.elapsed().as_secs_f64();
        let left = crate::sys::shared_clock();
        let (ready, digests, refused) = match tried {
            Tried::Done((ready, digests)) => (Some(ready), digests, None),
            Tried::Unsupported(why) => (None, Vec::new(), Some(why)),
        };
        let own = json!({
            "refused": refused,
            "found": to_json(&found),
            "digests": digests,
            "entered": entered,
            "left": left,
        });
        let all = self.collect(&own)?;
        let refused = all
            .iter()
            .find_map(|one| one["refused"].as_str().map(str::to_owned));
        let verdict = self.share(json!(refused))?;
        if let Some(why) = verdict.as_str() {
            if let Some(ready) = ready {
                self.locals.release(ready);
            }
            return Ok(Tried::Unsupported(why.to_owned()));
        }
        let Some(ready) = ready else {
            return Err("the ranks disagree about what is supported".to_owned());
        };
        let mut wrong = self.sum_up(&all, &case, &case.describe());
        if skewed && self.one_machine {
            let number = |one: &Value, name: &str| one[name].as_u64().unwrap_or(0);
            let last = all.iter().map(|one| number(one, "entered")).max();
            let early = all
                .iter()
                .filter(|one| Some(number(one, "left")) < last)
                .count();
            if early > 0 {
                wrong += early as u64;
                let text = format!(
                    "barrier: {early} rank{} left before the last had entered",
                    plural(early)
                );
                self.output.detail(&text);
            }
        }
        let times = self.time(&ready, &case, trial);
        self.locals.release(ready);
        let seconds = times?;
        Ok(Tried::Done(Measure {
            seconds,
            wrong: check.then_some(wrong),
        }))
    }

    /// Seconds of one call: the slowest participant of each block, the median block. 0 on other
    /// participants than the first.
    fn time(&mut self, ready: &Ready, case: &Case, trial: f64) -> Result<f64, String> {
        let what = case.describe();
        let failed = |error: Error| explain(&error, &what);
        let started = Instant::now();
        for _ in 0..self.args.warmup {
            self.locals.issue(ready).map_err(failed)?;
        }
        self.locals.synchronize().map_err(failed)?;
        let once = match self.args.warmup {
            0 => trial,
            n => started.elapsed().as_secs_f64() / f64::from(n),
        };
        let fitting = (ROW_SECONDS / once.max(1e-9)).clamp(5.0, 5000.0) as u32;
        let calls = self.share(json!(self.args.iters.unwrap_or(fitting)))?;
        let calls = u32::try_from(calls.as_u64().unwrap_or(1))
            .unwrap_or(1)
            .max(1);
        let blocks = self.args.blocks.min(calls);
        let each = calls.div_ceil(blocks);
        let mut times = Vec::new();
        for _ in 0..blocks {
            self.watch.step(&what);
            self.locals.barrier().map_err(failed)?;
            let started = Instant::now();
            for _ in 0..each {
                self.locals.issue(ready).map_err(failed)?;
            }
            self.locals.synchronize().map_err(failed)?;
            times.push(started.elapsed().as_secs_f64() / f64::from(each));
        }
        let all = self.collect(&json!(times))?;
        let slowest = |block: usize| {
            all.iter()
                .map(|one| one[block].as_f64().unwrap_or(0.0))
                .fold(0.0, f64::max)
        };
        let mut slowest: Vec<f64> = (0..blocks as usize).map(slowest).collect();
        slowest.sort_by(f64::total_cmp);
        Ok(slowest[slowest.len() / 2])
    }

    /// Everybody's value on participant 0, nothing elsewhere.
    fn collect(&mut self, own: &Value) -> Result<Vec<Value>, String> {
        let all = self.coord.gather(own.to_string().into_bytes())?;
        all.iter().map(|bytes| from_bytes(bytes)).collect()
    }

    /// Participant 0's value, everywhere.
    fn share(&mut self, own: Value) -> Result<Value, String> {
        from_bytes(&self.coord.broadcast(own.to_string().into_bytes())?)
    }

    /// Adds up what the participants found in a case and passes on the descriptions.
    fn sum_up(&mut self, all: &[Value], case: &Case, what: &str) -> u64 {
        let mut wrong = 0;
        let mut digests = Vec::new();
        for one in all {
            wrong += one["found"]["wrong"].as_u64().unwrap_or(0);
            for text in one["found"]["details"].as_array().into_iter().flatten() {
                self.output.detail(text.as_str().unwrap_or_default());
            }
            digests.extend(one["digests"].as_array().into_iter().flatten().cloned());
        }
        if case.same_everywhere() {
            let different = digests
                .iter()
                .filter(|digest| **digest != digests[0])
                .count();
            if different > 0 {
                wrong += different as u64;
                let text = match different {
                    1 => format!("{what}: 1 rank holds other bits than rank 0"),
                    n => format!("{what}: {n} ranks hold other bits than rank 0"),
                };
                self.output.detail(&text);
            }
        }
        wrong
    }

    /// Number of rows and check batches, for the progress bar.
    pub fn steps(&self) -> u64 {
        let mut steps = 0;
        for operation in &self.work.operations {
            if *operation == Operation::Barrier {
                steps += 1;
                continue;
            }
            for dtype in &self.work.dtypes {
                let ops = self
                    .reductions(*operation, *dtype, &self.work.reductions)
                    .len();
                let roots = self.roots(*operation, &self.work.roots).len();
                steps += ops * roots * self.work.sizes.len();
            }
            if self.args.checks() {
                steps += self.work.check_dtypes.len();
            }
        }
        steps as u64
    }

    /// Runs the cases that --check adds.
    ///
    /// # Errors
    /// A sentence about the first call that failed.
    pub fn checks(&mut self) -> Result<Vec<CheckLine>, String> {
        let mut lines = Vec::new();
        for operation in self.work.operations.clone() {
            if operation == Operation::Barrier {
                continue;
            }
            let mut line = CheckLine {
                operation,
                cases: 0,
                wrong: 0,
                unsupported: 0,
            };
            for dtype in self.work.check_dtypes.clone() {
                self.check_batch(operation, dtype, &mut line)?;
                self.output.advance();
            }
            self.output.line(&line.line())?;
            lines.push(line);
        }
        Ok(lines)
    }

    fn check_batch(
        &mut self,
        operation: Operation,
        dtype: DataType,
        line: &mut CheckLine,
    ) -> Result<(), String> {
        let mut found = Mismatches::default();
        let mut unsupported = 0u64;
        let mut batch: Option<Vec<u64>> = None;
        let any = self.case(operation, dtype, Reduction::MulSum, 0);
        for (number, (case, passing)) in self.batch(operation, dtype).into_iter().enumerate() {
            line.cases += 1;
            let case = Case {
                seed: 1000 + number as u64,
                ..case
            };
            match self.try_once(case, passing, Some(&mut found))? {
                Tried::Unsupported(_) => unsupported += 1,
                Tried::Done((ready, digests)) => {
                    self.locals.release(ready);
                    let batch = batch.get_or_insert_with(|| vec![0; digests.len()]);
                    for (sum, digest) in batch.iter_mut().zip(digests) {
                        *sum = sum.rotate_left(5) ^ digest;
                    }
                }
            }
        }
        let own = json!({
            "found": to_json(&found),
            "digests": batch.unwrap_or_default(),
            "unsupported": unsupported,
        });
        let all = self.collect(&own)?;
        let what = format!(
            "{} {}, one of the added cases",
            operation.name(),
            dtype.name()
        );
        line.wrong += self.sum_up(&all, &any, &what);
        let most = all
            .iter()
            .filter_map(|one| one["unsupported"].as_u64())
            .max();
        line.unsupported += most.unwrap_or(0);
        Ok(())
    }

    fn batch(&self, operation: Operation, dtype: DataType) -> Vec<(Case, Passing)> {
        let mut batch = Vec::new();
        for reduction in self.reductions(operation, dtype, &self.work.check_reductions) {
            let patterns = if operation.reduces() {
                Pattern::for_reduction(dtype, reduction, self.host_tier)
            } else {
                vec![Pattern::Exact]
            };
            for root in self.roots(operation, &self.work.check_roots) {
                for count in &self.args.check_counts {
                    for pattern in &patterns {
                        for in_place in self.ways(operation) {
                            let case = Case {
                                root,
                                pattern: *pattern,
                                ..self.case(operation, dtype, reduction, *count)
                            };
                            let passing = Passing {
                                in_place,
                                null_unused: true,
                                // Off the alignment of vectors, on that of the element.
                                shift: usize::from(count % 2 == 1),
                            };
                            batch.push((case, passing));
                        }
                    }
                }
            }
        }
        batch
    }
}

fn to_json(found: &Mismatches) -> Value {
    json!({ "wrong": found.wrong, "details": found.details })
}

fn from_bytes(bytes: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(bytes).map_err(|e| format!("unreadable message of another rank: {e}"))
}
