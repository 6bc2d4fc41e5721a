//! Measures what a second thread of an executor brings to large calls over shared memory: `cargo bench --bench threads`.
//!
//! Two members are threads of this process. Calls in which one member works while the other sleeps have both cores of a small machine
//! for themselves; the last two calls need a core for each member, and gain only where there are more. Without `--bench`, as
//! `cargo test` runs it, one small round shows that it works.

use std::time::{Duration, Instant};

use half::bf16;
use uform::communicator::shared::Listener;
use uform::rendezvous::memory::Hall;
use uform::sys::Element;
use uform::{
    Arena, Call, Deadline, Error, Executor, HostOptions, Mesh, MeshOptions, ReduceOp, Result, Verb, device,
    environment,
};

const MEMBERS: usize = 2;
const THREADS: [usize; 2] = [1, 2];

fn deadline() -> Deadline<'static> {
    Deadline::after(Duration::from_secs(220))
}

/// One call on the own part of an arena: in place, or into its second half.
fn call<T: Element>(mesh: &Mesh, arena: &Arena, verb: Verb, bytes: usize) -> Result<()> {
    let parts = |count: usize| bytes / count / 64 * 64;
    let (given, output) = match verb {
        Verb::AllGather => (parts(MEMBERS), parts(MEMBERS) * MEMBERS),
        _ => (bytes, bytes),
    };
    let is_apart = verb == Verb::AllGather || verb == Verb::Reduce && mesh.index() != 0;
    let output = if verb == Verb::Reduce && mesh.index() != 0 { 0 } else { output };
    let given = arena.part(mesh.index()).map(|part| part.part(0..given)).transpose()?;
    let start = if is_apart { bytes } else { 0 };
    let output = arena.own(start..start + output)?;
    let call = Call::of::<T>(verb, ReduceOp::Sum, 0, given.filter(|_| is_apart), output);
    mesh.run(call, &deadline())
}

/// Milliseconds of the slowest member, and milliseconds of the pool of member 0's executor, for one call.
fn measure(mesh: &Mesh, rounds: usize, mut act: impl FnMut(&Mesh) -> Result<()>) -> Result<(f64, f64)> {
    let used = || mesh.executor().thread_seconds().unwrap_or(0.0);
    let (mut times, mut helped) = (Vec::new(), 0.0);
    for round in 0..rounds + 1 {
        mesh.barrier()?;
        let (before, start) = (used(), Instant::now());
        act(mesh)?;
        if round > 0 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
            helped += (used() - before) * 1e3;
        }
    }
    mesh.all_reduce(&mut times, ReduceOp::Max)?;
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], helped / rounds as f64))
}

fn member(mesh: &Mesh, is_whole: bool) -> Result<()> {
    let executors =
        THREADS.map(|threads| Executor::for_ram(&HostOptions { threads, ..HostOptions::default() }));
    let [one, two] = executors;
    let (one, two) = (mesh.on(&one?), mesh.on(&two?));
    let sizes: &[usize] =
        if is_whole { &[512 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 64 << 20] } else { &[4 << 20] };
    let arena = mesh.arena(2 * sizes.iter().max().copied().unwrap_or(0), &deadline())?;
    type Act = fn(&Mesh, &Arena, Verb, usize) -> Result<()>;
    let calls: [(&str, Verb, Act); 5] = [
        ("reduce bf16 to one", Verb::Reduce, call::<bf16>),
        ("reduce f32 to one", Verb::Reduce, call::<f32>),
        ("broadcast", Verb::Broadcast, call::<f32>),
        ("all_reduce f32", Verb::AllReduce, call::<f32>),
        ("all_gather", Verb::AllGather, call::<f32>),
    ];
    for (name, verb, act) in calls {
        for bytes in sizes {
            let rounds = if is_whole { ((64 << 20) / bytes).clamp(9, 60) } else { 1 };
            let run = |mesh: &Mesh| measure(mesh, rounds, |mesh| act(mesh, &arena, verb, *bytes));
            let ((alone, _), (both, helped)) = (run(&one)?, run(&two)?);
            if mesh.index() == 0 {
                println!(
                    "{name:>20} {:>6} KiB: 1 thread {alone:8.3} ms, 2 threads {both:8.3} ms ({:.2}), pool of index 0 {helped:.3} ms",
                    bytes >> 10,
                    both / alone
                );
            }
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let is_whole = std::env::args().any(|argument| argument == "--bench");
    let hall = Hall::new(MEMBERS);
    let threads = (0..MEMBERS).map(|index| {
        let hall = hall.clone();
        std::thread::spawn(move || {
            let deadline = deadline();
            let listener = Listener::open()?;
            let launch = environment::read(&MeshOptions::default())?;
            let introduction = device::introduction(&launch, listener.address())?;
            let exchange = hall.enter(index, introduction, &deadline)?;
            let mesh = Mesh::of_exchange(exchange, Some(listener), None, &deadline)?;
            member(&mesh, is_whole)?;
            mesh.close()
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        let gone = |_| Error::io("a member", "measure", std::io::Error::other("it panicked"));
        thread.join().map_err(gone)??;
    }
    Ok(())
}
