//! Members of a group on this host, made by hand: threads of this process, or processes that meet in a folder.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uform::communicator::Communicator;
use uform::communicator::shared::{Listener, Proof, SharedCommunicator};
use uform::communicator::tcp::{self, Links, Run, TcpCommunicator};
use uform::communicator::tiered::TieredCommunicator;
use uform::rendezvous::RunKey;
use uform::sys::{Deadline, process};
use uform::topology::{Group, Introduction, Member, Process, Roster, Survey};

/// The key of all hand-made runs.
pub(crate) const KEY: RunKey = RunKey([42; 32]);

/// How long a host may be silent where no test says otherwise.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

/// Long enough for a machine that does ten other things.
pub(crate) fn patience() -> Deadline<'static> {
    Deadline::after(Duration::from_secs(60))
}

pub(crate) fn introduction(socket: String) -> Introduction {
    let pid = process::pid();
    let boot_id = process::boot_id().expect("/proc is mounted");
    Introduction {
        process: Process {
            host_name: process::host_name(),
            boot_id: boot_id.clone(),
            pid,
            start_ticks: process::start_ticks(pid).expect("/proc is mounted"),
            command: process::command(),
        },
        cores: vec![0],
        quota_cores: None,
        visible_gpus: Vec::new(),
        driven_gpus: None,
        shares_gpus: false,
        socket,
        launcher: "test".into(),
        local_index: None,
        survey: Survey {
            host_name: process::host_name(),
            boot_id,
            cores: vec![0],
            memory_domains: Vec::new(),
            siblings: Vec::new(),
            cpu_classes: Vec::new(),
            gpus: Vec::new(),
        },
    }
}

pub(crate) fn roster(introductions: Vec<Introduction>) -> Roster {
    let members = introductions.into_iter().enumerate();
    let members =
        members.map(|(index, introduction)| Member { index, nonce: format!("nonce{index}"), introduction });
    Roster { run: "test".into(), members: members.collect() }
}

pub(crate) fn group(index: usize, count: usize) -> Group {
    Group { name: "run".into(), seats: (0..count).collect(), own: index }
}

/// Listeners and the roster of `count` threads of this process.
pub(crate) fn thread_listeners(count: usize) -> (Vec<Listener>, Roster) {
    let listeners = (0..count).map(|_| Listener::open().expect("sockets are free")).collect::<Vec<_>>();
    let roster = roster(listeners.iter().map(|listener| introduction(listener.address())).collect());
    (listeners, roster)
}

/// Runs `act` in `count` threads, each a member of one group.
pub(crate) fn threads<R: Send>(
    count: usize,
    piece_bytes: usize,
    act: impl Fn(Arc<SharedCommunicator>) -> R + Sync,
) -> Vec<R> {
    let (listeners, roster) = thread_listeners(count);
    let results = Mutex::new((0..count).map(|_| None).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for (index, listener) in listeners.into_iter().enumerate() {
            let (roster, results, act) = (&roster, &results, &act);
            scope.spawn(move || {
                let proof = Proof::gather(Some(listener), roster, index, &KEY, &patience()).expect("proved");
                let joined =
                    SharedCommunicator::join_with(proof, &group(index, count), piece_bytes, &patience());
                let result = act(joined.expect("joined"));
                results.lock().expect("no panic")[index] = Some(result);
            });
        }
    });
    let results = results.into_inner().expect("no panic");
    results.into_iter().map(|result| result.expect("the thread ended")).collect()
}

/// Runs `act` in `count` threads, each a member of one group that is connected over the loopback network.
pub(crate) fn network_threads<R: Send>(
    count: usize,
    piece_bytes: usize,
    act: impl Fn(Arc<TcpCommunicator>) -> R + Sync,
) -> Vec<R> {
    let roster = roster((0..count).map(|_| introduction(String::new())).collect());
    let listen = |_| tcp::Listener::open(None, true, "a test").expect("the loopback interface is up");
    let listeners = (0..count).map(listen).collect::<Vec<_>>();
    let published = listeners.iter().map(tcp::Listener::publication).collect::<Vec<_>>();
    let results = Mutex::new((0..count).map(|_| None).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for (index, listener) in listeners.into_iter().enumerate() {
            let (roster, published, results, act) = (&roster, &published, &results, &act);
            scope.spawn(move || {
                let run = Run { roster, index, key: &KEY, published, silence: SILENCE };
                let group = group(index, count);
                let links = Links::connect(listener, run, &group.seats, &patience()).expect("connected");
                let joined = TcpCommunicator::join_with(links, &group, piece_bytes).expect("joined");
                let result = act(joined);
                results.lock().expect("no panic")[index] = Some(result);
            });
        }
    });
    let results = results.into_inner().expect("no panic");
    results.into_iter().map(|result| result.expect("the thread ended")).collect()
}

/// Runs `act` in threads that play members of several hosts: `hosts` says in which one each of them is.
pub(crate) fn tiered_threads<R: Send>(
    hosts: &[usize],
    piece_bytes: usize,
    act: impl Fn(Arc<TieredCommunicator>) -> R + Sync,
) -> Vec<R> {
    let (doors, mut roster) = thread_listeners(hosts.len());
    for (member, host) in roster.members.iter_mut().zip(hosts) {
        member.introduction.process.boot_id = format!("host {host}");
    }
    let doors = Mutex::new(doors.into_iter().map(Some).collect::<Vec<_>>());
    let mut seats = vec![Vec::new(); hosts.iter().max().map_or(0, |last| last + 1)];
    hosts.iter().enumerate().for_each(|(seat, host)| seats[*host].push(seat));
    network_threads(hosts.len(), piece_bytes, |world| {
        let index = world.seat();
        let door = doors.lock().expect("no panic")[index].take();
        let proof = Proof::gather(door, &roster, index, &KEY, &patience()).expect("proved");
        let group = group(index, hosts.len());
        let joined = TieredCommunicator::join_with(world, &group, &seats, |own| {
            SharedCommunicator::join_with(proof, own, piece_bytes, &patience())
        });
        act(joined.expect("joined"))
    })
}

/// Joins processes of this host over the network, which were started with the same folder.
pub(crate) fn join_network(folder: &Path, index: usize, count: usize) -> Arc<TcpCommunicator> {
    let listener = tcp::Listener::open(None, true, "a test").expect("the loopback interface is up");
    publish(folder, "introduction", index, &own_introduction(String::new()));
    publish(folder, "addresses", index, &listener.publication());
    let read = |what: &str, other| await_published(folder, what, other);
    let published = (0..count).map(|other| read("addresses", other)).collect::<Vec<_>>();
    let introductions = (0..count).map(|other| read("introduction", other));
    let introductions = introductions.map(|text| serde_json::from_slice(&text).expect("renamed when whole"));
    let roster = roster(introductions.collect());
    let run = Run { roster: &roster, index, key: &KEY, published: &published, silence: SILENCE };
    let group = group(index, count);
    let links = Links::connect(listener, run, &group.seats, &patience()).expect("connected");
    TcpCommunicator::join(links, &group).expect("joined")
}

fn own_introduction(socket: String) -> Vec<u8> {
    serde_json::to_vec(&introduction(socket)).expect("it is plain data")
}

fn publish(folder: &Path, what: &str, index: usize, text: &[u8]) {
    let part = folder.join(format!("part.{what}.{index}"));
    std::fs::write(&part, text).expect("the folder is writable");
    std::fs::rename(&part, folder.join(format!("{what}.{index}"))).expect("the folder is writable");
}

fn await_published(folder: &Path, what: &str, index: usize) -> Vec<u8> {
    let deadline = patience();
    loop {
        if let Ok(text) = std::fs::read(folder.join(format!("{what}.{index}"))) {
            return text;
        }
        assert!(!deadline.passed(), "index {index} has not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Joins processes that were started with the same folder.
pub(crate) fn join(folder: &Path, index: usize, count: usize, piece_bytes: usize) -> Arc<SharedCommunicator> {
    let listener = Listener::open().expect("sockets are free");
    publish(folder, "introduction", index, &own_introduction(listener.address()));
    let deadline = patience();
    let introductions = (0..count).map(|other| await_published(folder, "introduction", other));
    let introductions = introductions.map(|text| serde_json::from_slice(&text).expect("renamed when whole"));
    let roster = roster(introductions.collect());
    let proof = Proof::gather(Some(listener), &roster, index, &KEY, &deadline).expect("proved");
    SharedCommunicator::join_with(proof, &group(index, count), piece_bytes, &deadline).expect("joined")
}
