//! Members on different hosts: they form and reduce right, and when a cable, a host or a process goes, the others say so.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use uform::communicator::Communicator;
use uform::communicator::tcp::{Links, Listener, Run, TcpCommunicator};
use uform::rendezvous::RunKey;
use uform::{Deadline, Error, Mesh, ReduceOp, Status};

use super::calls::{bootstrap, exchange_words, move_arrays};
use super::communicator::{expect_lost, sum};
use crate::conformance::members::{self, KEY, SILENCE, group, patience};
use crate::harness::network::{Hosts, has_ipv6};
use crate::harness::{self, Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("network.verbs", verbs),
    ("network.turns", turns),
    ("network.form", form),
    ("network.quiet", quiet),
    ("network.report", report),
    ("network.dies_outside", dies_outside),
    ("network.dies_inside", dies_inside),
    ("network.stops", stops),
];

const MINUTES: Duration = Duration::from_secs(180);

/// Every verb over as many hosts as the argument says.
fn verbs(index: usize, count: usize, argument: &str) {
    let mesh = bootstrap();
    assert_eq!(mesh.topology().hosts().len().to_string(), argument);
    move_arrays(&mesh, &[0, 1, 1001, 250_007]);
    mesh.barrier().expect("all come");
    exchange_words(&mesh);
    let deadline = Mesh::verb_deadline(0.0).expect("the default");
    let arena = mesh.arena(64 * (index + 1), &deadline).expect("room for some bytes");
    assert_eq!(arena.byte_count(), 64 * (index + 1));
    assert_eq!(arena.own(0..8).expect("within").byte_count(), 8);
    let host = mesh.topology().host_of(index).expect("a member");
    for other in 0..count {
        let part = arena.part(other).map(|part| part.byte_count());
        assert_eq!(part, host.members.contains(&other).then_some(64 * (other + 1)), "index {other}");
    }
    let mut numbers = vec![index as f32; 10 + usize::from(index == 1)];
    let error = mesh.all_reduce(&mut numbers, ReduceOp::Sum).expect_err("one has another count");
    assert_eq!(error.status(), Status::Disagreed, "{error}");
    mesh.barrier().expect("the mesh stays usable");
    mesh.close().expect("idle");
}

/// Reduces until an error ends it.
fn turns(_index: usize, count: usize, _argument: &str) {
    let mesh = bootstrap();
    say("formed");
    let mut turn = 0_u64;
    let error = loop {
        let mut numbers = vec![1.0f32; 100_000];
        match mesh.all_reduce(&mut numbers, ReduceOp::Sum) {
            Ok(()) => assert!(numbers.iter().all(|number| *number == count as f32)),
            Err(error) => break error,
        }
        turn += 1;
        if turn.is_multiple_of(20) {
            say(&format!("turn {turn}."));
        }
    };
    say(&format!("ended with {}: {}", error.status().name(), error.chain()));
    assert_eq!(mesh.barrier().expect_err("the group is ended").status(), error.status());
}

fn form(_index: usize, _count: usize, _argument: &str) {
    let start = Instant::now();
    match Mesh::bootstrap(None, None) {
        Ok(mesh) => say(&format!("formed {}", mesh.topology().run())),
        Err(error) => {
            say(&format!(
                "ended after {:?} with {}: {}",
                start.elapsed(),
                error.status().name(),
                error.chain()
            ));
        }
    }
}

#[test]
fn three_hosts_form_and_reduce_right() {
    let Some(hosts) = Hosts::new(3) else { return };
    let run = Setup::new(3, "network.verbs").argument("3").networks(&hosts.networks()).deadline(MINUTES);
    assert_all_succeeded(&run.start().finish());
}

#[test]
fn two_hosts_with_several_members_form_and_reduce_right() {
    let Some(hosts) = Hosts::new(2) else { return };
    let networks = [0, 1, 0, 1, 0].map(|host| hosts.network(host));
    let run = Setup::new(5, "network.verbs").argument("2").networks(&networks).deadline(MINUTES);
    assert_all_succeeded(&run.start().finish());
}

#[test]
fn hosts_with_ipv6_alone_form() {
    if !has_ipv6() {
        println!("skipped: this kernel has no IPv6");
        return;
    }
    let Some(hosts) = Hosts::new(2) else { return };
    for position in 0..2 {
        hosts.configure(position, "-4 addr flush dev eth0");
    }
    let run = Setup::new(2, "network.verbs").argument("2").networks(&hosts.networks()).deadline(MINUTES);
    assert_all_succeeded(&run.start().finish());
}

#[test]
fn a_cut_cable_is_a_lost_host_within_the_limit() {
    let Some(hosts) = Hosts::new(3) else { return };
    let run = Setup::new(3, "network.turns").networks(&hosts.networks()).deadline(MINUTES);
    let mut run = run.variable("UFORM_SILENCE", "2").start();
    for position in 0..3 {
        run.wait_for(position, "turn 20.");
    }
    hosts.cut(2);
    let start = Instant::now();
    let outcomes = run.finish();
    // Two seconds of silence are the limit under test.
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}\n{}", start.elapsed(), transcript(&outcomes));
    assert_all_succeeded(&outcomes);
    for outcome in &outcomes[..2] {
        assert!(outcome.output.contains("ended with LOST: lost index 2"), "{}", transcript(&outcomes));
        assert!(outcome.output.contains("10.77.0.3"), "{}", transcript(&outcomes));
        assert!(outcome.output.contains("all_reduce #"), "{}", transcript(&outcomes));
    }
    assert!(outcomes[2].output.contains("ended with LOST"), "{}", transcript(&outcomes));
}

#[test]
fn a_cable_that_is_plugged_in_again_in_time_loses_nobody() {
    let Some(hosts) = Hosts::new(2) else { return };
    let run = Setup::new(2, "network.turns").networks(&hosts.networks()).deadline(MINUTES);
    let mut run = run.variable("UFORM_SILENCE", "60").start();
    run.wait_for(0, "turn 20.");
    hosts.cut(1);
    std::thread::sleep(Duration::from_millis(1500));
    hosts.heal(1);
    let reached = |text: &str| text.matches("turn ").count();
    let seen = reached(&run.output(0));
    run.wait_for(0, &format!("turn {}.", 20 * (seen + 10)));
    run.kill(1);
    let outcomes = run.finish();
    assert!(outcomes[0].output.contains("ended with LOST: lost index 1"), "{}", transcript(&outcomes));
}

#[test]
fn a_process_killed_on_another_host_is_named() {
    let Some(hosts) = Hosts::new(3) else { return };
    let mut run = Setup::new(3, "network.turns").networks(&hosts.networks()).deadline(MINUTES).start();
    for position in 0..3 {
        run.wait_for(position, "turn 20.");
    }
    run.kill(1);
    let start = Instant::now();
    let outcomes = run.finish();
    // A death is promised to be seen within a second.
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    for outcome in [&outcomes[0], &outcomes[2]] {
        assert!(outcome.output.contains("ended with LOST: lost index 1"), "{}", transcript(&outcomes));
        assert!(outcome.output.contains("its process ended"), "{}", transcript(&outcomes));
    }
}

#[test]
fn hosts_with_several_members_name_the_one_that_is_lost() {
    for cut in [false, true] {
        let Some(hosts) = Hosts::new(2) else { return };
        let networks = [0, 1, 0, 1].map(|host| hosts.network(host));
        let run = Setup::new(4, "network.turns").networks(&networks).deadline(MINUTES);
        let mut run = run.variable("UFORM_SILENCE", "2").start();
        for position in 0..4 {
            run.wait_for(position, "turn 20.");
        }
        if cut {
            hosts.cut(1);
        } else {
            run.kill(3);
        }
        let start = Instant::now();
        let outcomes = run.finish();
        let limit = Duration::from_secs(if cut { 6 } else { 3 });
        assert!(start.elapsed() < limit, "{:?}\n{}", start.elapsed(), transcript(&outcomes));
        for outcome in &outcomes[..3] {
            let lost = if cut { "ended with LOST" } else { "ended with LOST: lost index 3" };
            assert!(outcome.output.contains(lost), "{}", transcript(&outcomes));
        }
    }
}

#[test]
fn a_host_with_loopback_alone_fails_fast_and_says_so() {
    let Some(hosts) = Hosts::new(2) else { return };
    hosts.isolate(1);
    let run = Setup::new(2, "network.form").networks(&hosts.networks()).deadline(MINUTES);
    let start = Instant::now();
    let outcomes = run.start().finish();
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}\n{}", start.elapsed(), transcript(&outcomes));
    for outcome in &outcomes {
        let text = &outcome.output;
        assert!(text.contains("a loopback address reaches its own host only"), "{}", transcript(&outcomes));
    }
    assert!(outcomes[1].output.contains("with UNSUPPORTED"), "{}", transcript(&outcomes));
    assert!(outcomes[0].output.contains("index 1"), "{}", transcript(&outcomes));
}

#[test]
fn interfaces_can_be_chosen_and_a_wrong_choice_lists_them() {
    let Some(hosts) = Hosts::new(2) else { return };
    let setup = || Setup::new(2, "network.form").networks(&hosts.networks()).deadline(MINUTES);
    let outcomes = setup().variable("UFORM_INTERFACES", "10.77.0.0/24").start().finish();
    assert!(outcomes.iter().all(|one| one.output.contains("formed")), "{}", transcript(&outcomes));
    let outcomes = setup().variable("UFORM_INTERFACES", "ib*").start().finish();
    assert!(
        outcomes.iter().any(|one| one.output.contains("UFORM_INTERFACES = ib*")),
        "{}",
        transcript(&outcomes)
    );
    assert!(outcomes.iter().any(|one| one.output.contains("eth0 10.77.0.")), "{}", transcript(&outcomes));
    let outcomes = setup().variable("UFORM_INTERFACES", "10.0.0.0/99").start().finish();
    for outcome in &outcomes {
        let is_told = outcome.output.contains("with INVALID") && outcome.output.contains("eth0 10.77.0.");
        assert!(is_told, "{}", transcript(&outcomes));
    }
}

fn dies_outside(index: usize, count: usize, _argument: &str) {
    let communicator = members::join_network(&harness::folder(), index, count);
    sum(&*communicator, 10, &patience()).expect("all are there");
    if index == 1 {
        say("outside");
        harness::sleep_until_killed();
    }
    let text = expect_lost(sum(&*communicator, 10, &patience()), 1);
    assert!(text.contains("all_reduce #2") && text.contains("user code since all_reduce #1"), "{text}");
    assert_eq!(expect_lost(sum(&*communicator, 99, &patience()), 1), text);
}

fn dies_inside(index: usize, count: usize, _argument: &str) {
    let communicator = members::join_network(&harness::folder(), index, count);
    say("inside");
    let error = loop {
        if let Err(error) = sum(&*communicator, 1_000_000, &patience()) {
            break error;
        }
    };
    let text = expect_lost(Err(error), 1);
    assert_eq!(expect_lost(sum(&*communicator, 1, &patience()), 1), text);
}

/// Member 1 is stopped between two calls; the argument is how many numbers the next one has.
fn stops(index: usize, count: usize, argument: &str) {
    let length = argument.parse().expect("a number");
    let communicator = members::join_network(&harness::folder(), index, count);
    sum(&*communicator, 10, &patience()).expect("all are there");
    let wait_for = |name: &str| {
        while !harness::folder().join(name).exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    if index == 1 {
        say("outside");
        wait_for("go on");
        let text = expect_lost(sum(&*communicator, length, &patience()), 0);
        assert!(text.contains("timed out"), "{text}");
        return;
    }
    wait_for("stopped");
    let deadline = Deadline::after(Duration::from_secs(1));
    let error = sum(&*communicator, length, &deadline).expect_err("one stands still");
    let Error::TimedOut { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing.iter().map(|missing| missing.index).collect::<Vec<_>>(), [1]);
    let word = &missing[0].last_word;
    assert!(word.contains("user code since all_reduce #1") && word.contains("connected, silent"), "{error}");
    let later = sum(&*communicator, 10, &patience()).expect_err("the group is ended");
    assert_eq!(later.to_string(), error.to_string());
    say("timed out");
}

fn killed(role: &str, word: &str, pause: Duration) {
    let mut run = Setup::new(3, role).start();
    for position in 0..3 {
        if position == 1 || word == "inside" {
            run.wait_for(position, word);
        }
    }
    std::thread::sleep(pause);
    run.kill(1);
    let start = Instant::now();
    let outcomes = run.finish();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    let right = outcomes.iter().all(|outcome| outcome.index == 1 || outcome.succeeded());
    assert!(right, "{}", transcript(&outcomes));
}

#[test]
fn a_death_outside_a_call_is_lost_in_the_next() {
    killed("network.dies_outside", "outside", Duration::ZERO);
}

#[test]
fn a_death_inside_a_call_is_lost_in_it() {
    for pause in [0, 7, 50, 111] {
        killed("network.dies_inside", "inside", Duration::from_millis(pause));
    }
}

#[test]
fn a_stopped_member_is_silent_and_later_finds_the_group_ended() {
    for length in ["10", "500000"] {
        let mut run = Setup::new(2, "network.stops").argument(length).start();
        run.wait_for(1, "outside");
        run.stop(1);
        std::fs::write(run.folder().join("stopped"), "").expect("the folder is writable");
        run.wait_for(0, "timed out");
        std::fs::write(run.folder().join("go on"), "").expect("the folder is writable");
        run.signal(1, rustix::process::Signal::CONT);
        assert_all_succeeded(&run.finish());
    }
}

#[test]
fn one_that_closed_is_lost_and_disturbs_no_call_before() {
    for length in [100, 60_000] {
        for _ in 0..10 {
            members::network_threads(3, 4096, |communicator| {
                sum(&*communicator, length, &patience()).expect("all are in it");
                if communicator.seat() == 1 {
                    communicator.close();
                    let error = sum(&*communicator, length, &patience()).expect_err("closed");
                    assert!(matches!(error, Error::Closed { .. }), "{error}");
                } else {
                    let text = expect_lost(sum(&*communicator, 10, &patience()), 1);
                    assert!(text.contains("closed the group"), "{text}");
                }
            });
        }
    }
}

#[test]
fn why_a_member_left_is_told_although_it_closed_at_once() {
    for _ in 0..10 {
        let is_over = std::sync::atomic::AtomicBool::new(false);
        members::network_threads(3, 4096, |communicator| {
            sum(&*communicator, 10, &patience()).expect("all are there");
            if communicator.seat() == 1 {
                // A receive ends the group, and enters no call of all.
                let mut numbers = [0.0f32; 4];
                let output = uform::SpanMut::of(&mut numbers);
                let (verb, op) = (uform::Verb::Receive, ReduceOp::Sum);
                let call = uform::communicator::Call::of::<f32>(verb, op, 2, None, output);
                let error = communicator.run(call, &Deadline::after(Duration::from_millis(50)));
                assert!(matches!(error, Err(Error::TimedOut { .. })), "{error:?}");
                communicator.close();
                is_over.store(true, std::sync::atomic::Ordering::SeqCst);
            } else {
                let limit = patience();
                while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    assert!(!limit.passed(), "seat 1 has not left");
                    std::thread::sleep(Duration::from_millis(5));
                }
                let text = sum(&*communicator, 10, &patience()).expect_err("one has left").to_string();
                assert!(text.contains("receive #1 from index 2") && text.contains("timed out"), "{text}");
            }
        });
    }
}

#[test]
fn an_interrupt_ends_the_wait_and_the_group() {
    let is_over = std::sync::atomic::AtomicBool::new(false);
    members::network_threads(2, 4096, |communicator| {
        if communicator.seat() == 0 {
            let start = Instant::now();
            let stop = || start.elapsed() > Duration::from_millis(100);
            let deadline = patience().interruptible(&stop);
            let error = sum(&*communicator, 10, &deadline).expect_err("interrupted");
            assert!(matches!(error, Error::Interrupted { .. }), "{error}");
            is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        } else {
            while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let text = expect_lost(sum(&*communicator, 10, &patience()), 0);
            assert!(text.contains("interrupted in all_reduce #1"), "{text}");
        }
    });
}

#[test]
fn a_refusal_is_the_last_word() {
    let is_over = std::sync::Barrier::new(2);
    members::network_threads(2, 4096, |communicator| {
        sum(&*communicator, 5, &patience()).expect("all are in it");
        if communicator.seat() == 1 {
            let reason = Error::invalid("array", "7", "argument", "must be contiguous");
            communicator.refuse(uform::Verb::AllReduce, &reason);
        } else {
            let deadline = Deadline::after(Duration::from_millis(300));
            let text = sum(&*communicator, 5, &deadline).expect_err("nobody comes").to_string();
            assert!(text.contains("index 1") && text.contains("must be contiguous"), "{text}");
        }
        is_over.wait();
    });
}

/// Two listeners on the loopback interface, what they publish, and where they listen.
fn listeners(count: usize) -> (Vec<Listener>, Vec<Vec<u8>>, Vec<String>) {
    let listen = |_| Listener::open(None, true, "a test").expect("the loopback interface is up");
    let listeners = (0..count).map(listen).collect::<Vec<_>>();
    let published = listeners.iter().map(Listener::publication).collect::<Vec<_>>();
    let address = |bytes: &Vec<u8>| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut words = text.split_whitespace().filter(|word| word.starts_with("127.0.0.1:"));
        words.next().expect("the loopback interface is published").to_owned()
    };
    let addresses = published.iter().map(address).collect();
    (listeners, published, addresses)
}

#[test]
fn strangers_get_nothing_and_delay_nobody() {
    let (listeners, published, addresses) = listeners(2);
    let roster = members::roster((0..2).map(|_| members::introduction(String::new())).collect());
    let mut strangers = Vec::new();
    for address in &addresses {
        let reach = || TcpStream::connect(address).expect("it listens");
        strangers.extend((0..100).map(|_| reach()));
        let mut rude = reach();
        rude.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it is read");
        let mut huge = reach();
        huge.write_all(&[255; 4096]).expect("it is read");
        // One that claims to be index 1 gets an answer, and has no proof.
        let mut liar = reach();
        let hello = [b"uform-c1\x01".as_slice(), &[1, 0, 0, 0, 0, 0, 0, 0], &[9; 32]].concat();
        liar.write_all(&[&[hello.len() as u8][..], &hello].concat()).expect("it is read");
        let proof = [b"uform-c1\x03".as_slice(), &[7; 32], &[0; 8]].concat();
        liar.write_all(&[&[proof.len() as u8][..], &proof].concat()).expect("it is read");
        let mut half = reach();
        half.write_all(&hello[..20]).expect("it is read");
        strangers.extend([rude, huge, liar, half]);
    }
    std::thread::scope(|scope| {
        for (index, listener) in listeners.into_iter().enumerate() {
            let (roster, published) = (&roster, &published);
            scope.spawn(move || {
                let run = Run { roster, index, key: &KEY, published, silence: SILENCE };
                let links = Links::connect(listener, run, &[0, 1], &patience()).expect("connected");
                let joined = TcpCommunicator::join(links, &group(index, 2)).expect("joined");
                sum(&*joined, 100, &patience()).expect("all are there");
            });
        }
    });
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
        let mut heard = Vec::new();
        // An answer to a greeting holds a nonce and a proof; nothing follows it.
        let _ = stranger.read_to_end(&mut heard);
        assert!(heard.len() <= 74, "{heard:?}");
    }
}

#[test]
fn a_wrong_key_is_told_on_both_sides() {
    let (listeners, published, _) = listeners(2);
    let roster = members::roster((0..2).map(|_| members::introduction(String::new())).collect());
    std::thread::scope(|scope| {
        for (index, listener) in listeners.into_iter().enumerate() {
            let (roster, published) = (&roster, &published);
            scope.spawn(move || {
                let key = RunKey([index as u8; 32]);
                let run = Run { roster, index, key: &key, published, silence: SILENCE };
                let deadline = Deadline::after(Duration::from_millis(800));
                let error = Links::connect(listener, run, &[0, 1], &deadline).expect_err("the keys differ");
                let Error::TimedOut { missing, .. } = &error else { panic!("{error}") };
                assert_eq!(missing[0].index, 1 - index, "{error}");
                if index == 1 {
                    assert!(error.to_string().contains("does not know the run's key"), "{error}");
                }
                assert!(error.to_string().contains("127.0.0.1"), "{error}");
            });
        }
    });
}

#[test]
fn one_that_is_gone_before_it_connects_is_named() {
    for gone in [0, 1] {
        let (mut listeners, published, _) = listeners(2);
        let roster = members::roster((0..2).map(|_| members::introduction(String::new())).collect());
        let listener = listeners.swap_remove(1 - gone);
        drop(listeners);
        let run =
            Run { roster: &roster, index: 1 - gone, key: &KEY, published: &published, silence: SILENCE };
        let start = Instant::now();
        let error = Links::connect(listener, run, &[0, 1], &patience()).expect_err("one is gone");
        let Error::Lost { index, .. } = &error else { panic!("{error}") };
        assert_eq!(*index, gone, "{error}");
        assert!(error.to_string().contains("127.0.0.1"), "{error}");
        // Three seconds are promised.
        assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    }
}

#[test]
fn one_that_never_answers_is_named_with_what_it_published() {
    let (mut listeners, published, _) = listeners(2);
    let roster = members::roster((0..2).map(|_| members::introduction(String::new())).collect());
    // The other one listens, and never looks.
    let own = listeners.swap_remove(1);
    let run = Run { roster: &roster, index: 1, key: &KEY, published: &published, silence: SILENCE };
    let deadline = Deadline::after(Duration::from_millis(500));
    let error = Links::connect(own, run, &[0, 1], &deadline).expect_err("nobody answers");
    let Error::TimedOut { missing, .. } = &error else { panic!("{error}") };
    assert!(
        missing[0].last_word.contains("it published") && missing[0].last_word.contains("(lo)"),
        "{error}"
    );
}

/// The states of this process's TCP sockets as the kernel numbers them; `0A` listens.
fn tcp_states() -> Vec<String> {
    let links = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").flatten();
    let sockets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    let sockets = sockets.map(|link| link.to_string_lossy().into_owned()).collect::<Vec<_>>();
    let mut states = Vec::new();
    for file in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        for line in std::fs::read_to_string(file).unwrap_or_default().lines().skip(1) {
            let fields = line.split_whitespace().collect::<Vec<_>>();
            if sockets.contains(&format!("socket:[{}]", fields[9])) {
                states.push(fields[3].to_owned());
            }
        }
    }
    states
}

/// Says the report of the run, and how long it took to form.
fn report(index: usize, _count: usize, _argument: &str) {
    let start = Instant::now();
    let mesh = bootstrap();
    say(&format!("formed in {} ms.", start.elapsed().as_millis()));
    mesh.barrier().expect("all come");
    say(&mesh.topology().to_string());
    if index == 0 {
        std::fs::write(harness::folder().join("report"), mesh.topology().to_json()).expect("it is writable");
    }
    mesh.barrier().expect("all come");
}

#[test]
fn the_report_says_which_addresses_each_published_and_why() {
    let Some(hosts) = Hosts::new(2) else { return };
    for (choice, reason) in
        [(None, "up, and not of this host alone"), (Some("eth0"), "chosen by UFORM_INTERFACES = eth0")]
    {
        let mut setup = Setup::new(2, "network.report").networks(&hosts.networks()).deadline(MINUTES);
        if let Some(choice) = choice {
            setup = setup.variable("UFORM_INTERFACES", choice);
        }
        let mut run = setup.start();
        run.wait_for(0, "test result");
        let text = std::fs::read_to_string(run.folder().join("report")).expect("index 0 wrote it");
        let outcomes = run.finish();
        assert_all_succeeded(&outcomes);
        let json = serde_json::from_str::<serde_json::Value>(&text).expect("it is JSON");
        for (index, outcome) in outcomes.iter().enumerate() {
            let member = &json["members"][index];
            let own = format!("10.77.0.{}:", index + 1);
            let published = member["addresses"].as_array().expect("they listened");
            let is_own = |one: &&serde_json::Value| {
                one["address"].as_str().is_some_and(|address| address.starts_with(&own))
            };
            let found = published.iter().find(is_own).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((&found["interface"], &found["reason"]), (&"eth0".into(), &reason.into()), "{text}");
            assert!(!published.iter().any(|one| one["address"].to_string().contains("127.0.0.1")), "{text}");
            let left = member["addresses_left_out"].to_string();
            assert!(left.contains("lo 127.0.0.1 ("), "{text}");
            // All members tell the same of all.
            for other in 1..=2 {
                let line = format!("published 10.77.0.{other}:");
                let found = outcome.output.lines().find(|found| found.contains(&line));
                assert!(
                    found.is_some_and(|found| found.ends_with(&format!("of eth0: {reason}"))),
                    "{}",
                    outcome.output
                );
            }
        }
    }
}

#[test]
fn an_address_that_swallows_everything_delays_no_connection() {
    let Some(hosts) = Hosts::new(2) else { return };
    for position in 0..2 {
        // Other addresses, before and after the good one by their numbers, whose packets go to a card that does not exist.
        for dead in [1, 200] {
            hosts.configure(position, &format!("addr add 10.{dead}.0.{}/24 dev eth0", position + 1));
            let other = format!("10.{dead}.0.{}", 2 - position);
            hosts.configure(
                position,
                &format!("neigh add {other} lladdr 02:00:00:00:00:99 dev eth0 nud permanent"),
            );
        }
    }
    let run = Setup::new(2, "network.report").networks(&hosts.networks()).deadline(MINUTES);
    let outcomes = run.start().finish();
    assert_all_succeeded(&outcomes);
    for outcome in &outcomes {
        for address in ["10.1.0.1:", "10.200.0.1:", "10.77.0.1:"] {
            assert!(outcome.output.contains(&format!("published {address}")), "{}", transcript(&outcomes));
        }
        let words = outcome.output.split("formed in ").nth(1).and_then(|rest| rest.split_once(" ms."));
        let time = words.and_then(|(number, _)| number.parse::<u64>().ok()).expect("it was said");
        // Ten seconds are what one address may take to answer: if they were tried in turn, that would show.
        assert!(time < 10_000, "{time} ms\n{}", transcript(&outcomes));
    }
}

/// A mesh listens nowhere, and has connections only to other hosts: three to each member there.
fn quiet(_index: usize, _count: usize, argument: &str) {
    let mesh = bootstrap();
    mesh.barrier().expect("all come");
    let states = tcp_states();
    assert!(states.iter().all(|state| state == "01"), "{states:?}");
    assert_eq!(states.len().to_string(), argument);
    mesh.barrier().expect("all come");
}

#[test]
fn nothing_listens_on_one_host_or_after_bootstrap() {
    assert_all_succeeded(&Setup::new(2, "network.quiet").argument("0").deadline(MINUTES).start().finish());
    let Some(hosts) = Hosts::new(3) else { return };
    let run = Setup::new(3, "network.quiet").argument("6").networks(&hosts.networks()).deadline(MINUTES);
    assert_all_succeeded(&run.start().finish());
}
