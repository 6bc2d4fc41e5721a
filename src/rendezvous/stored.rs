//! The roster as it lies in the directory: what members have in common is written once.
//!
//! Every member reads all of it, so that its bytes count as often as there are members.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record::{OUTCOME_LIMIT, Proposal, Registration};
use crate::vocabulary::Nonce;

/// The fields of an introduction that are often the same on several members, each by itself.
const ALIKE: [&str; 3] = ["cores", "visible_gpus", "driven_gpus"];

/// A roster with each value once.
#[derive(Serialize, Deserialize)]
struct Stored {
    values: Vec<Value>,
    members: Vec<Row>,
    surveys: BTreeMap<String, Value>,
}

/// What is a member's own: nonce, process number, start, socket and local index; and where in `values` the rest of its
/// registration is, its command line, and the fields `ALIKE`.
type Row = (Nonce, Value, Value, Value, Value, [usize; 5]);

/// Distinct values, and where each of them is.
#[derive(Default)]
struct Values {
    all: Vec<Value>,
    places: HashMap<String, usize>,
}

impl Values {
    fn place(&mut self, value: Value) -> usize {
        let next = self.all.len();
        let place = *self.places.entry(value.to_string()).or_insert(next);
        if place == next {
            self.all.push(value);
        }
        place
    }
}

/// The bytes of a roster; `decode` gives an equal one.
pub(super) fn encode(proposal: &Proposal) -> serde_json::Result<Vec<u8>> {
    let mut values = Values::default();
    let rows = proposal.registrations.iter().enumerate();
    let rows = rows.map(|(index, one)| row(index, serde_json::to_value(one).ok()?, &mut values));
    if let Some(members) = rows.collect::<Option<Vec<Row>>>() {
        let stored = Stored { values: values.all, members, surveys: proposal.surveys.clone() };
        let bytes = serde_json::to_vec(&stored)?;
        if restore(&stored).as_ref() == Some(proposal) {
            return Ok(bytes);
        }
    }
    // A registration of another version has other fields: such a roster is stored as it is.
    serde_json::to_vec(proposal)
}

/// The roster in `bytes`, `None` if they are none.
pub(super) fn decode(bytes: &[u8]) -> Option<Proposal> {
    match serde_json::from_slice::<Stored>(bytes) {
        Ok(stored) => restore(&stored),
        Err(_) => serde_json::from_slice(bytes).ok(),
    }
}

/// Takes a registration apart; `None` if its fields are not those that are known.
fn row(index: usize, mut one: Value, values: &mut Values) -> Option<Row> {
    let introduction = one.get_mut("introduction")?.as_object_mut()?;
    let twice = introduction.remove("process")?;
    let (socket, local_index) = (introduction.remove("socket")?, introduction.remove("local_index")?);
    let [cores, gpus, driven] = ALIKE.map(|name| introduction.remove(name));
    let alike = [cores?, gpus?, driven?];
    let identity = one.get_mut("identity")?.as_object_mut()?;
    if identity.remove("index")? != index || *identity.get("process")? != twice {
        return None;
    }
    let Some(Value::String(nonce)) = identity.remove("nonce") else { return None };
    let process = identity.get_mut("process")?.as_object_mut()?;
    let (pid, start) = (process.remove("pid")?, process.remove("start_ticks")?);
    let command = process.remove("command")?;
    let [cores, gpus, driven] = alike.map(|field| values.place(field));
    let places = [values.place(one), values.place(command), cores, gpus, driven];
    Some((nonce, pid, start, socket, local_index, places))
}

fn restore(stored: &Stored) -> Option<Proposal> {
    // A short roster must not stand for more than memory holds.
    let sizes: Vec<usize> = stored.values.iter().map(|value| value.to_string().len()).collect();
    let size = |row: &Row| row.5.iter().map(|place| sizes.get(*place)).sum::<Option<usize>>();
    if stored.members.iter().map(size).sum::<Option<usize>>()? > OUTCOME_LIMIT {
        return None;
    }
    let value = |place: usize| stored.values.get(place).cloned();
    let whole = |(index, row): (usize, Row)| -> Option<Registration> {
        let (nonce, pid, start, socket, local_index, [rest, command, alike @ ..]) = row;
        let mut one = value(rest)?;
        let identity = one.get_mut("identity")?.as_object_mut()?;
        identity.insert("index".to_owned(), index.into());
        identity.insert("nonce".to_owned(), nonce.into());
        let process = identity.get_mut("process")?.as_object_mut()?;
        for (name, field) in [("pid", pid), ("start_ticks", start), ("command", value(command)?)] {
            process.insert(name.to_owned(), field);
        }
        let process = Value::Object(process.clone());
        let introduction = one.get_mut("introduction")?.as_object_mut()?;
        let own = [("process", process), ("socket", socket), ("local_index", local_index)];
        for (name, field) in own {
            introduction.insert(name.to_owned(), field);
        }
        for (name, place) in ALIKE.into_iter().zip(alike) {
            introduction.insert(name.to_owned(), value(place)?);
        }
        serde_json::from_value(one).ok()
    };
    let registrations = stored.members.iter().cloned().enumerate().map(whole).collect::<Option<_>>()?;
    Some(Proposal { registrations, surveys: stored.surveys.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::record::Identity;
    use crate::topology::Process;

    fn proposal(count: usize, foreign: Option<usize>) -> Proposal {
        let one = |index: usize| {
            let process = Process {
                host_name: format!("host-{}", index / 8),
                boot_id: format!("00000000-0000-0000-0000-{:012}", index / 8),
                pid: 1000 + u32::try_from(index).expect("small"),
                start_ticks: 77_000 + index as u64,
                command: "python3 -m train --with many --arguments".to_owned(),
            };
            let mut introduction = serde_json::json!({
                "process": process,
                "cores": [index % 8],
                "quota_cores": null,
                "visible_gpus": [],
                "driven_gpus": null,
                "socket": format!("uform-{index:032x}"),
                "launcher": "srun",
                "local_index": index % 8,
            });
            if foreign == Some(index) {
                introduction = serde_json::json!({"later": "version"});
            }
            let identity = Identity {
                index,
                nonce: format!("{index:032x}"),
                count,
                namespace: "pid:[4026531836]".to_owned(),
                process,
            };
            Registration { identity, survey: format!("{:032x}", index / 8), introduction }
        };
        let surveys = BTreeMap::from([("a".to_owned(), serde_json::json!({"cores": 8}))]);
        Proposal { registrations: (0..count).map(one).collect(), surveys }
    }

    #[test]
    fn a_roster_comes_back() {
        for (count, foreign) in [(1, None), (20, None), (20, Some(7))] {
            let given = proposal(count, foreign);
            assert_eq!(decode(&encode(&given).expect("text")), Some(given), "{count}, {foreign:?}");
        }
        // As an earlier version wrote it.
        let given = proposal(3, None);
        assert_eq!(decode(&serde_json::to_vec(&given).expect("text")), Some(given));
    }

    #[test]
    fn damage_is_no_roster_and_no_panic() {
        let bytes = encode(&proposal(3, None)).expect("text");
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "cut at {cut}");
        }
        let text = String::from_utf8(bytes).expect("text");
        let far = text.replacen(",[3,4,", ",[999,4,", 1);
        assert_ne!(far, text);
        assert_eq!(decode(far.as_bytes()), None);
        assert_eq!(decode(br#"{"values":[1],"members":[["n",1,1,"","",[0,0,0,0,0]]],"surveys":{}}"#), None);
    }

    #[test]
    fn a_short_roster_for_more_than_memory_holds_is_refused() {
        let text = String::from_utf8(encode(&proposal(1100, None)).expect("text")).expect("text");
        let with = |letters: usize| text.replacen("python3 -m train", &"x".repeat(letters), 1);
        assert!(decode(with(1000).as_bytes()).is_some());
        assert_eq!(decode(with(1 << 20).as_bytes()), None);
    }

    #[test]
    fn a_member_more_costs_what_is_its_own() {
        let bytes = |count| encode(&proposal(count, None)).expect("text").len();
        let each = (bytes(4096) - bytes(64)) / (4096 - 64);
        assert!(each <= 200, "{each} bytes for each member");
        let plain = serde_json::to_vec(&proposal(4096, None)).expect("text").len();
        assert!(4 * bytes(4096) < plain, "{} of {plain}", bytes(4096));
    }
}
