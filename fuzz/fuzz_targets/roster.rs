//! Records of a meeting place on whatever the fuzzer thinks of, and the topology of the members in them.
#![no_main]

use uform::topology::{Findings, Member, Plan, Roster, Topology, picture::Picture};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = Findings::from_bytes(data, 1);
    let introductions = uform::rendezvous::hostile::read(data);
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
});
