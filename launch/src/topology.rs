//! `uform topology`: forms a mesh like any other program would, and shows the run as its members see it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use uform::topology::picture::Picture;
use uform::{Mesh, MeshOptions};

use crate::Failure;

/// Forms a mesh and shows the run: hosts, memory domains, processes, cores, GPUs, links, multimem domains and groups.
///
/// Alone it shows this process; under a launcher index 0 shows all of them. It ends as soon as the mesh has formed, so
/// that it also tells whether a run would form.
#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long, conflicts_with = "svg")]
    json: bool,
    /// Write a picture of the run into this file instead; - is standard output
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// How long to wait for the others, in seconds; 0 takes UFORM_TIMEOUT, else 300
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    timeout: f64,
}

/// Runs the command.
pub(crate) fn execute(options: &Options) -> Result<i32, Failure> {
    let given = MeshOptions { timeout_seconds: options.timeout, ..MeshOptions::default() };
    let mesh = Mesh::bootstrap(None, Some(&given))?;
    // One barrier shows that bytes move, too.
    mesh.barrier()?;
    if mesh.index() == 0 {
        let topology = mesh.topology();
        match &options.svg {
            Some(path) if path.as_os_str() == "-" => crate::print(&Picture::of(topology).to_svg())?,
            Some(path) => write(path, &Picture::of(topology).to_svg())?,
            None if options.json => crate::print(&format!("{}\n", topology.to_json()))?,
            None => crate::print(&format!("{topology}\n"))?,
        }
    }
    mesh.close()?;
    Ok(0)
}

/// Writes a file as a whole: whoever reads it meanwhile sees the old one or the new one.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let failure = |error| Failure::system(format!("write {}", path.display()), error);
    // A device or a pipe cannot be replaced.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let file = OpenOptions::new().write(true).open(path);
        return file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failure);
    }
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    let sibling = path.with_file_name(name);
    let written = OpenOptions::new().write(true).create(true).truncate(true).open(&sibling);
    let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
    let written = written.and_then(|()| fs::rename(&sibling, path));
    if written.is_err() {
        // The error that counts is the first one.
        let _ = fs::remove_file(&sibling);
    }
    written.map_err(failure)
}
