//! Meshes of some of the members of a mesh, who meet over its own group: nothing else is touched.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::group::{Between, Forming, form};
use super::{Mesh, RUN};
use crate::communicator::derived_key;
use crate::communicator::shared::Listener;
use crate::error::{Error, Result};
use crate::recorder::Site;
use crate::rendezvous::{Exchange, Reason, RunKey};
use crate::sys::Deadline;
use crate::topology::{Member, Process, Roster};
use crate::vocabulary::{MeshDomain, Verb};

/// What one member says first: its color, its key, and where it listens.
struct Choice {
    color: Option<u64>,
    key: i64,
    socket: String,
}

impl Choice {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.color.is_some())];
        bytes.extend(self.color.unwrap_or(0).to_le_bytes());
        bytes.extend(self.key.to_le_bytes());
        bytes.extend(self.socket.as_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (has_color, rest) = bytes.split_first()?;
        let (color, rest) = rest.split_first_chunk::<8>()?;
        let (key, socket) = rest.split_first_chunk::<8>()?;
        Some(Self {
            color: (*has_color == 1).then(|| u64::from_le_bytes(*color)),
            key: i64::from_le_bytes(*key),
            socket: String::from_utf8(socket.to_vec()).ok()?,
        })
    }
}

impl Mesh {
    /// A mesh of the members that give the same color, in the order of their keys and then of their indexes here; `None` for
    /// a member without a color.
    ///
    /// Collective over this mesh. The new one runs on this handle's executor, has a topology, an order of calls and a fate of
    /// its own, and either may be closed first.
    ///
    /// # Errors
    /// As [`Mesh::run`] while all members meet, and as [`Mesh::bootstrap`] for those of one color, who all get the same.
    #[track_caller]
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Self>> {
        self.split_within(color, key, &Self::patience())
    }

    /// As [`Mesh::split`], within a deadline.
    ///
    /// # Errors
    /// As [`Mesh::split`].
    #[track_caller]
    pub fn split_within(
        &self,
        color: Option<u64>,
        key: i64,
        deadline: &Deadline<'_>,
    ) -> Result<Option<Self>> {
        let site = Site::caller();
        self.refusing(Verb::Split, || {
            self.check_open()?;
            let _admission = self.admitted(Verb::Split, deadline)?;
            self.split_here(color, key, site, deadline)
        })
    }

    /// The mesh of the members of this one that are in the same domain, by index; a lone member gets a mesh of one.
    ///
    /// Collective over this mesh.
    ///
    /// # Errors
    /// As [`Mesh::split`].
    #[track_caller]
    pub fn domain(&self, domain: MeshDomain) -> Result<Self> {
        self.domain_within(domain, &Self::patience())
    }

    /// As [`Mesh::domain`], within a deadline.
    ///
    /// # Errors
    /// As [`Mesh::split`].
    #[track_caller]
    pub fn domain_within(&self, domain: MeshDomain, deadline: &Deadline<'_>) -> Result<Self> {
        let first = self.topology().members_of(domain, self.index()).first().copied();
        let part = self.split_within(Some(first.unwrap_or(self.index()) as u64), 0, deadline)?;
        part.ok_or_else(|| Error::Closed {
            what: "the domain".to_owned(),
            why: "it was not formed".to_owned(),
        })
    }

    /// A split whose turn has come.
    fn split_here(
        &self,
        color: Option<u64>,
        key: i64,
        site: Site,
        deadline: &Deadline<'_>,
    ) -> Result<Option<Self>> {
        // Without a socket this member still tells the others: it gives up where they would wait for it.
        let listener = if color.is_some() { Some(Listener::open()) } else { None };
        let socket = listener.as_ref().and_then(|opened| opened.as_ref().ok()).map(Listener::address);
        let own = Choice { color, key, socket: socket.unwrap_or_default() };
        let said = self.exchange_as((Verb::Split, site), &own.to_bytes(), deadline)?;
        let number = self.inner.split_count.fetch_add(1, Ordering::Relaxed) + 1;
        let choices = said.iter().enumerate().map(|(index, bytes)| {
            Choice::from_bytes(bytes).ok_or_else(|| Error::Disagreed {
                field: "the form of a split".to_owned(),
                mine: format!("version {}", env!("CARGO_PKG_VERSION")),
                theirs: "sent what this version cannot read".to_owned(),
                index,
            })
        });
        let choices = choices.collect::<Result<Vec<_>>>()?;
        let name = match color {
            Some(color) => group_name(color, number, &self.inner.name),
            None => String::new(),
        };
        let mut assembly = Assembly::new((self, site), &choices, color, &name);
        let formed = color.map(|_| match listener {
            Some(Err(error)) => {
                assembly.give_up(&error);
                Err(error)
            }
            listener => {
                let lease = self.inner.lease.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let forming = Forming {
                    name: &name,
                    executor: Some(self.executor()),
                    lease,
                    gpus_per_multimem_domain: 0,
                    between: Between { network: &self.inner.network, world: None },
                    recorder: Some(&self.inner.recorder),
                    family: Some(&self.inner.family),
                };
                // Whoever gives up the split, or ends, gives up the group that is split.
                let check = || self.communicator().check();
                let deadline = deadline.unless_vain(&check);
                form(&mut assembly, listener.and_then(Result::ok), forming, &deadline)
            }
        });
        // The others may need more rounds than this member did, and all of them make each round.
        let ended = assembly.end(deadline);
        // One that only gave up looks lost to those that were connected to it: why this mesh ended, if it did, counts more.
        let formed = formed.map(|formed| match formed {
            Err(error @ Error::Lost { .. }) => self.communicator().check().and(Err(error)),
            other => other,
        });
        match formed {
            Some(formed) => formed.map(Some).map_err(|error| renamed(error, &name)),
            None => ended.map(|()| None),
        }
    }
}

/// The name of a part, by the color, the number of the split, and the group that was split.
fn group_name(color: u64, number: u64, parent: &str) -> String {
    let name = format!("color {color} of split {number}");
    if parent == RUN { name } else { format!("{name} of {parent}") }
}

/// Says what was formed: the phases are those of bootstrap.
fn renamed(mut error: Error, name: &str) -> Error {
    if let Error::TimedOut { phase, .. } | Error::Interrupted { phase, .. } | Error::Lost { phase, .. } =
        &mut error
        && let Some(rest) = phase.strip_prefix("bootstrap")
    {
        *phase = format!("forming {name}{rest}");
    }
    error
}

/// How far a member has come, as it says in each round.
enum Word {
    /// It forms its part.
    Forming { phase: String, payload: Vec<u8> },
    /// It has formed its part, or has none.
    Done,
    /// It could not.
    GaveUp(Reason),
}

impl Word {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Forming { phase, payload } => {
                let mut bytes = vec![0];
                bytes.extend((phase.len() as u64).to_le_bytes());
                bytes.extend(phase.as_bytes());
                bytes.extend(payload);
                bytes
            }
            Self::Done => vec![1],
            Self::GaveUp(reason) => [&[2], &reason.to_bytes()[..]].concat(),
        }
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        match kind {
            0 => {
                let (length, rest) = rest.split_first_chunk::<8>()?;
                let (phase, payload) =
                    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
                Some(Self::Forming {
                    phase: String::from_utf8(phase.to_vec()).ok()?,
                    payload: payload.to_vec(),
                })
            }
            1 => Some(Self::Done),
            2 => Reason::from_bytes(rest).map(Self::GaveUp),
            _ => None,
        }
    }
}

/// The members of one color, who exchange in rounds that all members of the mesh make together.
struct Assembly<'a> {
    mesh: &'a Mesh,
    /// Where the split was called.
    site: Site,
    /// The indexes in the mesh, by index in the part.
    seats: Vec<usize>,
    index: usize,
    roster: Roster,
    key: RunKey,
    last: Word,
    /// Whether the group of the mesh makes no more rounds.
    is_broken: bool,
}

impl<'a> Assembly<'a> {
    fn new((mesh, site): (&'a Mesh, Site), choices: &[Choice], color: Option<u64>, name: &str) -> Self {
        let with_color = |seat: &usize| color.is_some() && choices[*seat].color == color;
        let mut seats = (0..choices.len()).filter(with_color).collect::<Vec<_>>();
        seats.sort_by_key(|seat| (choices[*seat].key, *seat));
        let members = seats.iter().enumerate().filter_map(|(index, seat)| {
            let mut member = mesh.topology().members().get(*seat)?.clone();
            member.introduction.socket.clone_from(&choices[*seat].socket);
            Some(Member { index, ..member })
        });
        let run = format!("{}, {name}", mesh.topology().run());
        Self {
            roster: Roster { run, members: members.collect() },
            index: seats.iter().position(|seat| *seat == mesh.index()).unwrap_or(0),
            key: derived_key(&mesh.inner.key, name),
            last: Word::Done,
            is_broken: false,
            site,
            mesh,
            seats,
        }
    }

    fn process(&self) -> &Process {
        &self.mesh.topology().members()[self.mesh.index()].introduction.process
    }

    /// Says one word to all members of the mesh, and hears theirs.
    fn round(&mut self, word: &Word, deadline: &Deadline<'_>) -> Result<Vec<Option<Word>>> {
        // The call looks after its members itself.
        let deadline = deadline.in_any_case();
        let said = self.mesh.exchange_as((Verb::Split, self.site), &word.to_bytes(), &deadline);
        // Whatever ended one round ends all later ones.
        self.is_broken |= said.is_err();
        Ok(said?.iter().map(|bytes| Word::from_bytes(bytes)).collect())
    }

    /// Makes rounds until nobody forms a part any more.
    fn end(&mut self, deadline: &Deadline<'_>) -> Result<()> {
        let last = std::mem::replace(&mut self.last, Word::Done);
        while !self.is_broken {
            let words = self.round(&last, deadline)?;
            if !words.iter().any(|word| matches!(word, Some(Word::Forming { .. }))) {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Exchange for Assembly<'_> {
    fn index(&self) -> usize {
        self.index
    }

    fn roster(&self) -> &Roster {
        &self.roster
    }

    fn key(&self) -> &RunKey {
        &self.key
    }

    fn exchange(&mut self, phase: &str, payload: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
        let word = Word::Forming { phase: phase.to_owned(), payload: payload.to_vec() };
        let words = self.round(&word, deadline)?;
        let reason = self.seats.iter().find_map(|seat| match words.get(*seat) {
            Some(Some(Word::GaveUp(reason))) => Some(reason.error(self.index, self.process())),
            _ => None,
        });
        if let Some(error) = reason {
            return Err(error);
        }
        let payloads = self.seats.iter().enumerate().map(|(index, seat)| match words.get(*seat) {
            Some(Some(Word::Forming { phase: theirs, payload })) if theirs == phase => Ok(payload.clone()),
            other => Err(Error::Disagreed {
                field: "the phase of forming a part of a mesh".to_owned(),
                mine: phase.to_owned(),
                theirs: match other {
                    Some(Some(Word::Forming { phase, .. })) => phase.clone(),
                    Some(Some(_)) => "has ended".to_owned(),
                    _ => "sent what this version cannot read".to_owned(),
                },
                index,
            }),
        });
        payloads.collect()
    }

    fn give_up(&mut self, reason: &Error) {
        self.last = Word::GaveUp(Reason::of(reason, self.index, self.process()));
    }

    fn close(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_and_rubbish_is_not() {
        let choice = Choice { color: Some(7), key: -3, socket: "a socket".to_owned() };
        let heard = Choice::from_bytes(&choice.to_bytes()).expect("whole");
        assert_eq!((heard.color, heard.key, heard.socket.as_str()), (Some(7), -3, "a socket"));
        assert!(Choice::from_bytes(&choice.to_bytes()[..16]).is_none());
        let word = Word::Forming { phase: "ready".to_owned(), payload: vec![1, 2] };
        let heard = Word::from_bytes(&word.to_bytes());
        assert!(
            matches!(heard, Some(Word::Forming { phase, payload }) if phase == "ready" && payload == [1, 2])
        );
        assert!(matches!(Word::from_bytes(&[1]), Some(Word::Done)));
        let long = [&[0][..], &u64::MAX.to_le_bytes(), b"ready"].concat();
        assert!(Word::from_bytes(&long).is_none() && Word::from_bytes(&[]).is_none());
    }

    #[test]
    fn names_lead_back_to_the_run() {
        assert_eq!(group_name(1, 2, RUN), "color 1 of split 2");
        assert_eq!(group_name(0, 1, "color 1 of split 2"), "color 0 of split 1 of color 1 of split 2");
    }
}
