//! Adds up one array over all processes of a run: alone, or under `uform launch --processes 2`.

use uform::{Mesh, ReduceOp, Result};

fn main() -> Result<()> {
    let mesh = Mesh::bootstrap(None, None)?;
    let mut numbers = [mesh.index() as f32 + 1.0, 10.0];
    mesh.all_reduce(&mut numbers, ReduceOp::Sum)?;
    println!("index {} of {}: the sum is {numbers:?}", mesh.index(), mesh.count());
    if mesh.index() == 0 {
        println!("{}", mesh.topology());
    }
    mesh.close()
}
