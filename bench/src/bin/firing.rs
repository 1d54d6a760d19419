//! Firing many plans each second: what is lost, how late, what it costs beside a bare prototype; and one slow job.
//!
//! `cargo run --release --bin firing [PLANS [SECONDS]]` (300,000 plans, 10 s by default)

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use timertask::{Plan, Run, Scheduler};
use timertask_bench::{Verdict, await_active, cpu, every_second, percentile};

const WORKERS: usize = 2;

/// What jobs note: how often each slot was started, and how late.
struct Starts {
    plans: usize,
    seconds: usize,
    /// The first second that counts.
    from: AtomicI64,
    /// By second and plan.
    slots: Vec<AtomicU8>,
    /// Microseconds, by second and plan.
    late: Vec<AtomicU32>,
}

/// What they come to.
struct Came {
    lost: usize,
    twice: usize,
    /// p50, p99, max, microseconds.
    late: [u64; 3],
    cpu_per_million: f64,
}

impl Starts {
    fn new(plans: usize, seconds: usize) -> Arc<Self> {
        let n = plans * seconds;
        Arc::new(Self {
            plans,
            seconds,
            from: AtomicI64::new(i64::MAX),
            slots: (0..n).map(|_| AtomicU8::new(0)).collect(),
            late: (0..n).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    fn note(&self, plan: usize, second: i64) {
        let from = self.from.load(Ordering::Relaxed);
        if second < from || second >= from.saturating_add(self.seconds as i64) || plan >= self.plans {
            return;
        }
        let place = (second - from) as usize * self.plans + plan;
        self.slots[place].fetch_add(1, Ordering::Relaxed);
        let late = now_micros() - second * 1_000_000;
        self.late[place].store(u32::try_from(late).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Counts from the second after next, for as long as was said; then waits for the last ones.
    fn watch(&self) -> Came {
        let from = now_micros() / 1_000_000 + 2;
        self.from.store(from, Ordering::Relaxed);
        sleep_until(from * 1_000_000 - 100_000);
        let before = cpu();
        // Ends in the lull after the last second's slots, as it began in the one before the first.
        sleep_until((from + self.seconds as i64) * 1_000_000 - 100_000);
        let used = cpu().saturating_sub(before);
        std::thread::sleep(Duration::from_millis(2_000));
        self.from.store(i64::MAX, Ordering::Relaxed);
        let count = |wanted: fn(u8) -> bool| self.slots.iter().filter(|n| wanted(n.load(Ordering::Relaxed))).count();
        let mut late: Vec<u64> = self.late.iter().map(|l| u64::from(l.load(Ordering::Relaxed))).collect();
        Came {
            lost: count(|n| n == 0),
            twice: count(|n| n > 1),
            late: [50.0, 99.0, 100.0].map(|p| percentile(&mut late, p)),
            cpu_per_million: used.as_secs_f64() * 1e6 / self.slots.len() as f64,
        }
    }
}

fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_micros()).expect("before the year 294247")
}

fn sleep_until(micros: i64) {
    std::thread::sleep(Duration::from_micros(u64::try_from(micros - now_micros()).unwrap_or(0)));
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let plans = args.next().unwrap_or(300_000);
    let seconds = args.next().unwrap_or(10);
    let mut verdict = Verdict::default();
    println!("{plans} plans each second, {seconds} s, {WORKERS} workers, no-op job");
    println!(
        "{:<28}{:>9}{:>7}{:>10}{:>10}{:>10}{:>16}",
        "", "lost", "twice", "p50 ms", "p99 ms", "max ms", "CPU s per M"
    );
    let bare = prototype(plans, seconds);
    show("prototype", &bare);
    let ours = scheduler(plans, seconds, false);
    show("timertask, MemLedger", &ours);
    let slow = scheduler(plans, seconds, true);
    show("  and one job of 3 s", &slow);
    println!("CPU per fire, times the prototype's: {:.1}", ours.cpu_per_million / bare.cpu_per_million);
    verdict.must(ours.lost == 0 && ours.twice == 0, &format!("{plans} plans a second: none lost, none twice"));
    verdict.must(slow.lost == 0 && slow.twice == 0, "one slow job delays its own plan only: no other slot lost");
    verdict.end();
}

fn show(what: &str, came: &Came) {
    let [p50, p99, max] = came.late.map(|micros| micros as f64 / 1e3);
    println!(
        "{what:<28}{:>9}{:>7}{p50:>10.1}{p99:>10.1}{max:>10.1}{:>16.2}",
        came.lost, came.twice, came.cpu_per_million
    );
}

fn scheduler(plans: usize, seconds: usize, slow: bool) -> Came {
    let starts = Starts::new(plans, seconds);
    let noted = Arc::clone(&starts);
    let job = move |run: &Run| {
        match run.plan().parse() {
            Ok(plan) => noted.note(plan, run.slot_key().at.as_secs()),
            Err(_) => std::thread::sleep(Duration::from_secs(3)),
        }
        Ok(())
    };
    // The slow job has a worker for itself, so that as many are left for the others.
    let workers = WORKERS + usize::from(slow);
    let scheduler = Scheduler::builder(job).concurrency(workers).start().expect("it starts");
    let mut set = every_second(plans);
    if slow {
        // Into the midst, as any other.
        set.insert(plans / 2, Plan::new("slow", "* * * * * *"));
    }
    let last = (plans - 1).to_string();
    drop(scheduler.reconcile(set).expect("good plans"));
    await_active(&scheduler, &last);
    let came = starts.watch();
    scheduler.close(Duration::from_secs(5)).expect("it closes");
    came
}

/// The limit: a heap whose entries fall due each second, a bounded channel, two workers.
fn prototype(plans: usize, seconds: usize) -> Came {
    type Entry = (i64, usize);
    let starts = Starts::new(plans, seconds);
    let (sender, receiver) = crossbeam_channel::bounded::<Entry>(1024);
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (receiver, starts) = (receiver.clone(), Arc::clone(&starts));
            std::thread::spawn(move || receiver.iter().for_each(|(second, plan)| starts.note(plan, second)))
        })
        .collect();
    drop(receiver);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let timer = std::thread::spawn(move || {
        let first = now_micros() / 1_000_000 + 1;
        let mut heap: BinaryHeap<Reverse<Entry>> = (0..plans).map(|plan| Reverse((first, plan))).collect();
        while !stopped.load(Ordering::Relaxed) {
            let Some(mut top) = heap.peek_mut() else { return };
            let Reverse((second, plan)) = *top;
            sleep_until(second * 1_000_000);
            let _ = sender.send((second, plan));
            top.0.0 = second + 1;
        }
    });
    let came = starts.watch();
    stop.store(true, Ordering::Relaxed);
    let _ = timer.join();
    for worker in workers {
        let _ = worker.join();
    }
    came
}
