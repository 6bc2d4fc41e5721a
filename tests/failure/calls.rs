//! What members of any mesh call, with values that tell members and positions apart.

use uform::{Mesh, ReduceOp};

pub(crate) fn bootstrap() -> Mesh {
    Mesh::bootstrap(None, None).unwrap_or_else(|error| panic!("{}", error.chain()))
}

fn element(index: usize, position: usize) -> f64 {
    // A constant fill would hide faults.
    (index * 1_000_000 + position) as f64
}

/// The verbs on arrays of these lengths.
pub(crate) fn move_arrays(mesh: &Mesh, lengths: &[usize]) {
    let (index, count) = (mesh.index(), mesh.count());
    for length in lengths.iter().copied() {
        let own = (0..length).map(|position| element(index, position)).collect::<Vec<_>>();
        let mut sum = own.clone();
        mesh.all_reduce(&mut sum, ReduceOp::Sum).expect("all come");
        for (position, sum) in sum.iter().enumerate() {
            assert_eq!(*sum, (0..count).map(|index| element(index, position)).sum::<f64>());
        }
        let root = length % count;
        let mut copy = own.clone();
        mesh.broadcast(&mut copy, root).expect("all come");
        assert!(copy.iter().enumerate().all(|(position, value)| *value == element(root, position)));
        let mut all = vec![0.0; length * count];
        mesh.all_gather(&own, &mut all).expect("all come");
        for (at, value) in all.iter().enumerate() {
            assert_eq!(*value, element(at / length, at % length));
        }
        let mut share = vec![0.0; length];
        mesh.reduce_scatter(&all, &mut share, ReduceOp::Max).expect("all come");
        assert!(share.iter().enumerate().all(|(position, value)| *value == element(index, position)));
    }
}

/// Byte strings of different lengths.
pub(crate) fn exchange_words(mesh: &Mesh) {
    let deadline = Mesh::verb_deadline(0.0).expect("the default");
    let words = mesh.exchange(&vec![mesh.index() as u8; mesh.index()], &deadline).expect("all come");
    assert_eq!(words, (0..mesh.count()).map(|index| vec![index as u8; index]).collect::<Vec<_>>());
}
