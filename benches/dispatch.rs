//! Measures how soon an executor starts a call in each mood, and what its idle threads cost: `cargo bench --bench dispatch`.
//!
//! The executor has one thread, so that the caller has a core of its own on any machine with two. Without `--bench`, as
//! `cargo test` runs it, a few calls show that it works.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use uform::{Deadline, Executor, HostOptions, Mood, Result};

/// Calls of each kind, and how long to stay idle.
struct Amount {
    calls: usize,
    idle: Duration,
}

const WHOLE: Amount = Amount { calls: 5000, idle: Duration::from_secs(3) };
const SMALL: Amount = Amount { calls: 20, idle: Duration::from_millis(50) };

/// Between two calls, so that each finds the thread idle.
const GAP: Duration = Duration::from_micros(300);

fn main() -> ExitCode {
    let is_whole = std::env::args().any(|argument| argument == "--bench");
    match measure(if is_whole { &WHOLE } else { &SMALL }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.chain());
            ExitCode::FAILURE
        }
    }
}

fn deadline() -> Deadline<'static> {
    Deadline::after(Duration::from_secs(60))
}

fn measure(amount: &Amount) -> Result<()> {
    let executor = Executor::for_ram(&HostOptions { threads: 1, ..HostOptions::default() })?;
    let held = (0..amount.calls).map(|_| {
        let start = Instant::now();
        drop(executor.hold("an empty call")?);
        Ok(start.elapsed())
    });
    show("a blocking call: hold and release", held.collect::<Result<Vec<_>>>()?);
    for mood in [Mood::Busy, Mood::Parked] {
        executor.drain(mood, &deadline())?;
        let (mut begun, mut done) = (Vec::new(), Vec::new());
        for _ in 0..amount.calls {
            std::thread::sleep(GAP);
            let start = Instant::now();
            let call = executor.submit("an empty call", |_| Ok(Instant::now()));
            begun.push(call.wait(&deadline())?.duration_since(start));
            done.push(start.elapsed());
        }
        show(&format!("{mood}: submitted until it begins"), begun);
        show(&format!("{mood}: submitted until wait returns"), done);
        std::thread::sleep(Duration::from_millis(200));
        let before = executor.thread_seconds();
        std::thread::sleep(amount.idle);
        let used = executor.thread_seconds().zip(before).map(|(after, before)| after - before);
        match used {
            Some(used) => {
                println!("{mood}: CPU seconds of an idle second {:8.4}", used / amount.idle.as_secs_f64());
            }
            None => println!("{mood}: this system does not tell the CPU time of threads"),
        }
    }
    executor.close(&deadline())
}

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let microseconds = |position: usize| times[position.min(times.len() - 1)].as_secs_f64() * 1e6;
    let (median, high) = (microseconds(times.len() / 2), microseconds(times.len() * 99 / 100));
    println!("{what:<40} median {median:8.2} us, 99 of 100 within {high:8.2} us");
}
