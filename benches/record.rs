//! Measures what the check of a call and its record cost, without another member: nobody is waited for.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uform::communicator::control::Life;
use uform::communicator::recorded::RecordedCommunicator;
use uform::communicator::{Call, Channel, Communicator, SharedArena};
use uform::recorder::{Identity, Place, Recorder, Site};
use uform::sys::{Deadline, SpanMut};
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
    println!("record of a call: {:.1} ns, with its site {:.1} ns", recorded - bare, with_site - bare);
    let mesh = Mesh::bootstrap(None, None)?;
    let whole = median(|| {
        let _ = black_box(mesh.barrier());
    });
    println!("barrier of a lone member, with executor, check and record: {whole:.1} ns");
    mesh.close()?;
    let _ = std::fs::remove_dir_all(folder);
    Ok(())
}
