//! Pictures of every recorded run: nothing overlaps or sticks out, lines keep clear of boxes, and the XML is well formed.

use std::fmt::Write;

use uform::topology::picture::{Area, Kind, LineKind, Picture, text_width};
use uform::topology::{Findings, Roster, Topology};

use super::topology::{Recorded, topologies};

/// A run of equal hosts, each with members of one GPU behind a switch.
fn large(hosts: usize, gpus: usize) -> Topology {
    let mut recorded = Recorded::default();
    for host in 0..hosts {
        let boot = format!("b{host}");
        recorded.machine(&format!("node{host:02}"), |key| match key {
            "boot" => &boot,
            _ => "0-55,112-167/56-111,168-223",
        });
        let name = format!("node{host:02}");
        let identity = format!("GPU-{host}-{{0-{}}}", gpus - 1);
        recorded.gpus(&name, |key| match key {
            "id" => &identity,
            "name" => "NVIDIA H100 80GB HBM3",
            "class" => "NVIDIA_HOPPER",
            "multicast" => "yes",
            "fabric" => "0000:0:complete",
            _ => "switch",
        });
        for gpu in 0..gpus {
            let own = format!("GPU-{host}-{gpu}");
            recorded.member(&name, |key| if key == "gpus" { &own } else { "" });
        }
    }
    recorded.findings = (0..hosts * gpus)
        .map(|index| Findings {
            opened: (index / gpus * gpus..(index / gpus + 1) * gpus).collect(),
            multicast: Some(true),
            ..Findings::default()
        })
        .collect();
    let roster = Roster { run: "large".into(), members: recorded.members };
    Topology::derive(&roster, &recorded.findings, 0).expect("a sound roster")
}

/// Every recorded run that forms, and some made to be large or odd.
fn runs() -> Vec<(String, Topology)> {
    let mut runs = topologies();
    runs.extend(super::machines::topologies());
    runs.push(("large_16x8".into(), large(16, 8)));
    runs.push(("large_3x20".into(), large(3, 20)));
    runs.push(("odd_names".into(), odd_names()));
    runs
}

/// Names that are markup, long, or no letters at all.
fn odd_names() -> Topology {
    let mut recorded = Recorded::default();
    let host = "<b>&\"'\u{1}\u{7}漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字";
    recorded.machine(host, |key| if key == "boot" { "]]>" } else { "0-1" });
    recorded.gpus(host, |key| match key {
        "id" => "GPU-<{0-1}",
        "name" => "<GPU & \"company\" with a very long name that has no room anywhere>",
        _ => "",
    });
    recorded.member(host, |key| if key == "gpus" { "GPU-<{0-1}" } else { "" });
    recorded.findings = vec![Findings::default()];
    let roster = Roster { run: format!("a&b<c>{}", "x".repeat(400)), members: recorded.members };
    Topology::derive(&roster, &recorded.findings, 0).expect("a sound roster")
}

/// What is wrong with a picture, one line each.
pub(super) fn faults(picture: &Picture) -> Vec<String> {
    let mut faults = Vec::new();
    let whole = Area { x: 0, y: 0, width: picture.width, height: picture.height };
    let shapes = &picture.shapes;
    for (position, shape) in shapes.iter().enumerate() {
        let outer = shape.parent.map_or(whole, |parent| shapes[parent].area);
        if !outer.holds(&shape.area) || shape.parent.is_some_and(|parent| parent >= position) {
            faults.push(format!("{:?} {:?} sticks out of {outer:?}", shape.kind, shape.area));
        }
        for other in &shapes[position + 1..] {
            if other.parent == shape.parent && shape.area.overlaps(&other.area) {
                faults.push(format!("{shape:?} overlaps {other:?}"));
            }
        }
        for label in &shape.labels {
            let size = label.weight.font_size();
            let width = text_width(&label.text, label.weight);
            let words = Area { x: label.x, y: label.y.saturating_sub(size), width, height: size };
            if !shape.area.holds(&words) {
                faults.push(format!(
                    "{:?} at {words:?} sticks out of {:?} {:?}",
                    label.text, shape.kind, shape.area
                ));
            }
            let inside = shapes.iter().filter(|inner| inner.parent == Some(position));
            faults.extend(
                inside
                    .filter(|inner| inner.area.overlaps(&words))
                    .map(|inner| format!("{:?} of {:?} is behind {:?}", label.text, shape.kind, inner.kind)),
            );
        }
    }
    for line in &picture.lines {
        for ends in line.points.windows(2) {
            let (from, to) = (ends[0], ends[1]);
            if from.0 != to.0 && from.1 != to.1 {
                faults.push(format!("{line:?} is askew"));
            }
            let way = Area {
                x: from.0.min(to.0),
                y: from.1.min(to.1),
                width: from.0.abs_diff(to.0).max(1),
                height: from.1.abs_diff(to.1).max(1),
            };
            if !whole.holds(&way) {
                faults.push(format!("{line:?} sticks out"));
            }
            let crossed = shapes.iter().filter(|shape| shape.area.overlaps(&way));
            let crossed = crossed.filter(|shape| match (shape.kind, line.kind) {
                (Kind::Host, _) | (Kind::Hull { .. }, LineKind::Link) => false,
                (Kind::Hull { domain, .. }, LineKind::Lane(own)) => domain != own,
                _ => true,
            });
            faults.extend(crossed.map(|shape| format!("{line:?} crosses {:?} {:?}", shape.kind, shape.area)));
        }
    }
    faults
}

/// Checks that a text is well-formed XML of elements, attributes and text, as the pictures are.
fn check_xml(text: &str) -> Result<(), String> {
    let mut open = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        check_text(&rest[..start])?;
        let end = rest[start..].find('>').ok_or("an element does not end")? + start;
        let inner = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = inner.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> closes something else"));
            }
            continue;
        }
        let (inner, closed) = inner.strip_suffix('/').map_or((inner, false), |inner| (inner, true));
        let (name, mut attributes) = inner.split_once(' ').unwrap_or((inner, ""));
        let mut names = Vec::new();
        while !attributes.trim().is_empty() {
            let (attribute, value) =
                attributes.trim_start().split_once("=\"").ok_or("an attribute has no value")?;
            let (value, left) = value.split_once('"').ok_or("a value does not end")?;
            check_text(value)?;
            if names.contains(&attribute) || attribute.contains(['<', '"', ' ']) {
                return Err(format!("{attribute} is twice in {inner}"));
            }
            names.push(attribute);
            attributes = left;
        }
        if !closed {
            open.push(name);
        }
    }
    if rest.trim().is_empty() && open.is_empty() {
        Ok(())
    } else {
        Err(format!("left open: {open:?} {rest}"))
    }
}

fn check_text(text: &str) -> Result<(), String> {
    let forbidden = |character: char| character < ' ' && !['\n', '\t'].contains(&character);
    let entities = text
        .split('&')
        .skip(1)
        .all(|after| ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|name| after.starts_with(name)));
    if text.contains(['<', '>']) || text.contains(forbidden) || !entities {
        return Err(format!("no text: {text}"));
    }
    Ok(())
}

#[test]
fn nothing_overlaps_and_nothing_sticks_out() {
    let mut wrong = String::new();
    for (name, topology) in runs() {
        let picture = Picture::of(&topology);
        let found = faults(&picture);
        for fault in found.iter().take(5) {
            writeln!(wrong, "{name}: {fault}").expect("a String takes everything");
        }
        let gpus = picture.shapes.iter().filter(|shape| shape.kind == Kind::Gpu).count();
        let members = picture.shapes.iter().filter(|shape| matches!(shape.kind, Kind::Member(_))).count();
        assert_eq!((gpus, members), (topology.gpus().len(), topology.count()), "{name}");
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn drawings_are_well_formed_and_always_the_same() {
    for (name, topology) in runs() {
        let svg = Picture::of(&topology).to_svg();
        assert_eq!(svg, Picture::of(&topology).to_svg(), "{name}");
        if let Err(error) = check_xml(&svg) {
            panic!("{name}: {error}");
        }
        assert!(svg.starts_with("<svg ") && !svg.contains("href"), "{name}");
    }
    let svg = Picture::of(&odd_names()).to_svg();
    assert!(svg.contains("host &lt;b&gt;&amp;&quot;&#39;\u{fffd}\u{fffd}漢字"), "{svg}");
    assert!(
        svg.contains("&lt;GPU &amp; &quot;company&quot; with a very long name that has no room anywhere&gt;")
    );
}

#[test]
fn the_reader_of_xml_sees_what_is_wrong() {
    assert_eq!(check_xml("<a b=\"c\"><d/>e &amp; f</a>\n"), Ok(()));
    for odd in ["<a>", "<a></b>", "<a b></a>", "<a>&x;</a>", "<a b=\"1\" b=\"2\"/>", "<a>\u{1}</a>", "<a"] {
        assert!(check_xml(odd).is_err(), "{odd}");
    }
}

/// Draws every recorded run into `target/pictures`, to be looked at.
#[test]
#[ignore = "writes pictures for people"]
fn draw_pictures() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/pictures");
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    for (name, topology) in runs() {
        let svg = Picture::of(&topology).to_svg();
        std::fs::write(folder.join(format!("{name}.svg")), svg).expect("a picture can be written");
    }
}
