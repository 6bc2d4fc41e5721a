//! Where this member records its calls.

use std::sync::Arc;

use crate::environment::record::{self, Records};
use crate::error::Result;
use crate::recorder::{Identity, Place, Recorder};
use crate::topology::Topology;

/// What this process's variables say about records.
pub(super) fn read() -> Result<Records> {
    record::records()
}

/// Begins the record of a member; a member alone, which waits for nobody, has no file unless somebody asked for one.
pub(super) fn open(records: &Records, topology: &Topology, index: usize) -> Result<Arc<Recorder>> {
    let process = |index: usize| topology.members().get(index).map(|member| &member.introduction.process);
    let run = topology.run().to_owned();
    let identity = process(index).map(|own| Identity {
        index,
        count: topology.count(),
        run: run.clone(),
        host: own.host_name.clone(),
        boot_id: own.boot_id.clone(),
        pid: own.pid,
        start_ticks: own.start_ticks,
        command: own.command.clone(),
    });
    // The leader's process tells this start of the run from all others.
    let start =
        process(0).map_or_else(String::new, |leader| format!("-{}-{}", leader.pid, leader.start_ticks));
    let first_here = topology.host_of(index).and_then(|host| host.members.first());
    let place = Place {
        folder: records.folder.clone(),
        user: records.user.clone(),
        run: run + &start,
        is_temporary: !records.is_chosen,
        reclaims: first_here == Some(&index),
    };
    let has_file = topology.count() > 1 || records.is_chosen;
    let recorder = Recorder::open(&identity.unwrap_or_default(), has_file.then_some(&place))?;
    Ok(Arc::new(recorder))
}
