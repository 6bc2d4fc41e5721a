//! All that members derive from what they say of themselves, for the fuzz targets that read it.

use uform::topology::{Findings, Introduction, Member, Plan, Roster, Topology, picture::Picture};

/// Derives the topology, the plans and the pictures of a run of these members.
pub fn derive(introductions: Vec<Introduction>) {
    let count = introductions.len();
    if count == 0 || count > 64 {
        return;
    }
    let members = introductions
        .into_iter()
        .enumerate()
        .map(|(index, introduction)| Member { index, nonce: index.to_string(), introduction })
        .collect();
    let roster = Roster { run: "fuzz".to_owned(), members };
    // With each other's memory, and without.
    for opened in [(0..count).collect::<Vec<_>>(), Vec::new()] {
        let of = |index: usize| Findings {
            opened: if opened.is_empty() { vec![index] } else { opened.clone() },
            readable: opened.clone(),
            multicast: Some(index % 2 == 0),
        };
        let findings = (0..count).map(of).collect::<Vec<_>>();
        for cut in [0, 2] {
            let Ok(topology) = Topology::derive(&roster, &findings, cut) else { continue };
            for index in 0..count {
                let _ = Plan::derive(&topology, index);
                let _ = topology.describe(index);
            }
            let _ = topology.to_string();
            let _ = topology.to_json();
            let _ = Picture::of(&topology);
        }
    }
}
