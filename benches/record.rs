//! Measures what the check of a call and its record cost, without another member: nobody is waited for.
//!
//! The check is that of a group in shared memory: what a call of a group of one takes besides its record. It is more than the
//! comparison alone, since the group's lock and its place in the order of calls are in it.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uform::communicator::control::Life;
use uform::communicator::recorded::RecordedCommunicator;
use uform::communicator::shared::{Proof, SharedCommunicator};
use uform::communicator::{Call, Channel, Communicator, SharedArena};
use uform::recorder::{Identity, Place, Recorder, Site};
use uform::rendezvous::RunKey;
use uform::sys::{Deadline, SpanMut, process};
use uform::topology::{Group, Introduction, Member, Process, Roster, Survey};
use uform::vocabulary::{Dtype, ReduceOp, Verb};
use uform::{Error, Mesh};

/// A group whose calls are nothing but their marks.
struct Nothing;

impl Channel for Nothing {
    fn post(&self, _: usize, _: &[u8]) -> bool {
        true
    }

    fn letters(&self) -> Vec<(usize, Vec<u8>)> {
        Vec::new()
    }

    fn life(&self, _: usize) -> Life {
        Life::Lives
    }

    fn check(&self) -> uform::Result<()> {
        Ok(())
    }

    fn rest(&self, _: Duration) {}

    fn went_on(&self, _: &str) {}
}

impl Communicator for Nothing {
    fn seat(&self) -> usize {
        0
    }

    fn count(&self) -> usize {
        1
    }

    fn run(&self, call: Call<'_>, _: &Deadline<'_>) -> Result<(), Error> {
        call.numbered(black_box(1));
        call.matched();
        black_box(&call);
        Ok(())
    }

    fn arena(&self, _: usize, _: &Deadline<'_>) -> Result<Arc<dyn SharedArena>, Error> {
        Err(Error::unsupported("an arena", "of this measure"))
    }

    fn refuse(&self, _: Verb, _: &Error) {}

    fn close(&self) {}
}

/// A group of this process alone, in shared memory.
fn alone(deadline: &Deadline<'_>) -> Result<Arc<SharedCommunicator>, Error> {
    let pid = process::pid();
    let (host_name, boot_id) = (process::host_name(), process::boot_id()?);
    let start_ticks = process::start_ticks(pid).unwrap_or(0);
    let process = Process {
        host_name: host_name.clone(),
        boot_id: boot_id.clone(),
        pid,
        start_ticks,
        command: String::new(),
    };
    let survey = Survey {
        host_name,
        boot_id,
        cores: vec![0],
        memory_domains: Vec::new(),
        siblings: Vec::new(),
        cpu_classes: Vec::new(),
        gpus: Vec::new(),
    };
    let introduction = Introduction {
        process,
        cores: vec![0],
        quota_cores: None,
        visible_gpus: Vec::new(),
        driven_gpus: None,
        shares_gpus: false,
        socket: String::new(),
        launcher: "bench".into(),
        local_index: None,
        survey,
    };
    let member = Member { index: 0, nonce: "bench".into(), introduction };
    let roster = Roster { run: "bench".into(), members: vec![member] };
    let proof = Proof::gather(None, &roster, 0, &RunKey([7; 32]), deadline)?;
    SharedCommunicator::join(proof, &Group { name: "run".into(), seats: vec![0], own: 0 }, deadline)
}

/// The median over rounds of the nanoseconds of one act.
fn median(mut act: impl FnMut()) -> f64 {
    const BATCH: u32 = 10_000;
    let mut times = (0..101)
        .map(|_| {
            let start = Instant::now();
            (0..BATCH).for_each(|_| act());
            start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH)
        })
        .collect::<Vec<_>>();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Error> {
    let deadline = Deadline::after(Duration::from_secs(120));
    let folder = std::env::temp_dir().join(format!("uform-bench-record-{}", std::process::id()));
    let place = Place {
        folder: folder.clone(),
        user: None,
        run: "bench".to_owned(),
        is_temporary: false,
        reclaims: false,
    };
    let recorder = Arc::new(Recorder::open(&Identity { count: 1, ..Identity::default() }, Some(&place))?);
    let group = RecordedCommunicator::new(Arc::new(Nothing), recorder, "run");
    let mut target = [0.0f32; 2];
    let mut run = |group: &dyn Communicator, site: fn() -> Site| {
        let call =
            Call::new(Verb::AllReduce, Dtype::F32, ReduceOp::Sum, 0, None, SpanMut::of(&mut target[..]));
        let _ = black_box(group.run(Call { site: site(), ..call }, &deadline));
    };
    let bare = median(|| run(&Nothing, Site::default));
    let recorded = median(|| run(&*group, Site::default));
    let with_site = median(|| run(&*group, Site::caller));
    let (record, record_with_site) = (recorded - bare, with_site - bare);
    println!("record of a call: {record:.1} ns, with its site {record_with_site:.1} ns");
    let shared = alone(&deadline)?;
    let checked = median(|| run(&*shared, Site::caller)) - median(|| run(&Nothing, Site::caller));
    println!("check of a call and its place in the order: {checked:.1} ns");
    println!("check and record together: {:.1} ns", checked + record_with_site);
    let mesh = Mesh::bootstrap(None, None)?;
    let whole = median(|| {
        let _ = black_box(mesh.barrier());
    });
    println!("barrier of a lone member, with executor, check and record: {whole:.1} ns");
    mesh.close()?;
    let _ = std::fs::remove_dir_all(folder);
    Ok(())
}
