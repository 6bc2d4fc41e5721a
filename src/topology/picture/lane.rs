//! Where hosts stand, and the lines between columns that join the hulls of one multimem domain.

use std::collections::{BTreeMap, BTreeSet};

use super::host::HostPart;
use super::{ASPECT, Area, GUTTER, HEAD, HOST_GAP, LANE, Line, LineKind, MARGIN, Picture};

/// The least width, so that title and legend have room.
const WIDTH_LEAST: u32 = 720;

/// A hull that a lane runs to: its host and its place among the host's ports.
struct Stop {
    host: usize,
    port: usize,
    y: u32,
}

/// Where hosts stand: the column and the upper edge of each.
struct Grid {
    columns: usize,
    places: Vec<(usize, u32)>,
    bottom: u32,
}

impl Grid {
    /// Hosts in the order of the run, down one column after the other, from `top` on.
    fn new(hosts: &[HostPart], columns: usize, top: u32) -> Self {
        let in_a_column = hosts.len().div_ceil(columns.max(1)).max(1);
        let mut grid = Self { columns: 0, places: Vec::new(), bottom: top };
        for (column, own) in hosts.chunks(in_a_column).enumerate() {
            let mut y = top;
            for host in own {
                grid.places.push((column, y));
                y += host.area.height + HOST_GAP;
            }
            grid.columns = column + 1;
            grid.bottom = grid.bottom.max(y.saturating_sub(HOST_GAP));
        }
        grid
    }

    /// The number of columns that comes nearest to the ratio of a page.
    fn best(hosts: &[HostPart], width: u32) -> usize {
        let distance = |columns: usize| {
            let grid = Self::new(hosts, columns, 0);
            let (across, down) = (grid.columns as u32 * (width + GUTTER), grid.bottom.max(1));
            // The same on every machine: whole numbers, and no logarithm.
            let (ratio, aim) = (u64::from(across) * 1000 / u64::from(down), (ASPECT * 1000.0) as u64);
            if ratio > aim { ratio * 1000 / aim } else { aim * 1000 / ratio.max(1) }
        };
        (1..=hosts.len().min(64)).min_by_key(|columns| distance(*columns)).unwrap_or(1)
    }
}

/// Puts the hosts into the picture, and joins the hulls of each domain that has several.
pub(super) fn place(picture: &mut Picture, hosts: &[HostPart]) {
    let width = hosts.iter().map(|host| host.area.width).max().unwrap_or(0);
    let columns = Grid::best(hosts, width);
    // Domains with several hulls, and of these the ones in several columns, which meet above all hosts.
    let mut hulls = BTreeMap::<usize, Vec<(usize, usize)>>::new();
    for (host, part) in hosts.iter().enumerate() {
        for (port, own) in part.ports.iter().enumerate() {
            hulls.entry(own.domain).or_default().push((host, port));
        }
    }
    hulls.retain(|_, places| places.len() > 1);
    let flat = Grid::new(hosts, columns, 0);
    let wide = hulls.iter().filter(|(_, places)| {
        let used = places.iter().map(|(host, _)| flat.places[*host].0).collect::<BTreeSet<_>>();
        used.len() > 1
    });
    let wide = wide.map(|(domain, _)| *domain).collect::<Vec<_>>();
    let head = MARGIN + HEAD;
    let band = if wide.is_empty() { 0 } else { wide.len() as u32 * LANE + LANE };
    let grid = Grid::new(hosts, columns, head + band);
    let lanes = Lanes::new(hosts, &grid, &hulls, &wide, head);
    let left = if lanes.most == 0 { 0 } else { lanes.most as u32 * LANE + LANE };
    let corner = |column: usize| MARGIN + left + column as u32 * (width + GUTTER + left);
    for (part, (column, y)) in hosts.iter().zip(&grid.places) {
        insert(picture, part, corner(*column), *y);
    }
    lanes.draw(picture, hosts, &grid, corner);
    let across = corner(grid.columns.saturating_sub(1)) + width + MARGIN;
    picture.width = across.max(WIDTH_LEAST);
    picture.height = grid.bottom;
}

fn insert(picture: &mut Picture, part: &HostPart, x: u32, y: u32) {
    let first = picture.shapes.len();
    for shape in &part.shapes {
        let mut shape = shape.clone();
        shape.area = Area { x: shape.area.x + x, y: shape.area.y + y, ..shape.area };
        shape.parent = shape.parent.map(|parent| parent + first);
        for label in &mut shape.labels {
            (label.x, label.y) = (label.x + x, label.y + y);
        }
        picture.add(shape);
    }
    for line in &part.lines {
        let mut line = line.clone();
        for point in &mut line.points {
            *point = (point.0 + x, point.1 + y);
        }
        if let Some(label) = &mut line.label {
            (label.x, label.y) = (label.x + x, label.y + y);
        }
        picture.lines.push(line);
    }
}

/// One line down the left of a column.
struct Lane {
    domain: usize,
    column: usize,
    /// Its place beside the column, 0 for the nearest.
    number: usize,
    from: u32,
    to: u32,
    stops: Vec<Stop>,
}

struct Lanes {
    lanes: Vec<Lane>,
    /// The height of the line above the hosts, of each domain that has one.
    above: BTreeMap<usize, u32>,
    /// The most lanes beside one column.
    most: usize,
}

impl Lanes {
    fn new(
        hosts: &[HostPart],
        grid: &Grid,
        hulls: &BTreeMap<usize, Vec<(usize, usize)>>,
        wide: &[usize],
        head: u32,
    ) -> Self {
        let above = wide.iter().enumerate().map(|(at, domain)| (*domain, head + LANE * at as u32));
        let above = above.collect::<BTreeMap<_, _>>();
        let mut by_column = BTreeMap::<(usize, usize), Vec<Stop>>::new();
        for (domain, places) in hulls {
            for (host, port) in places {
                let (column, top) = grid.places[*host];
                let arrival = hosts[*host].ports[*port].points.first().map_or(0, |point| point.1);
                let stop = Stop { host: *host, port: *port, y: top + arrival };
                by_column.entry((column, *domain)).or_default().push(stop);
            }
        }
        let mut lanes = by_column.into_iter().map(|((column, domain), stops)| {
            let ends = stops.iter().map(|stop| stop.y).chain(above.get(&domain).copied()).collect::<Vec<_>>();
            let (from, to) = (ends.iter().min().copied(), ends.iter().max().copied());
            let (from, to) = (from.unwrap_or(0), to.unwrap_or(0));
            Lane { domain, column, number: 0, from, to, stops }
        });
        let mut lanes = lanes.by_ref().collect::<Vec<_>>();
        // Each lane takes the nearest place that is free where it runs.
        lanes.sort_by_key(|lane| (lane.column, lane.to - lane.from, lane.from, lane.domain));
        for at in 0..lanes.len() {
            let meets = |other: &Lane| {
                let own = &lanes[at];
                other.column == own.column && other.from <= own.to && own.from <= other.to
            };
            let taken = lanes[..at].iter().filter(|other| meets(other)).map(|other| other.number);
            let taken = taken.collect::<BTreeSet<_>>();
            lanes[at].number = (0..).find(|number| !taken.contains(number)).unwrap_or(at);
        }
        let most = lanes.iter().map(|lane| lane.number + 1).max().unwrap_or(0);
        Self { lanes, above, most }
    }

    fn draw(&self, picture: &mut Picture, hosts: &[HostPart], grid: &Grid, corner: impl Fn(usize) -> u32) {
        let mut reach = BTreeMap::<usize, Vec<u32>>::new();
        for lane in &self.lanes {
            let x = corner(lane.column) - LANE - LANE * lane.number as u32;
            reach.entry(lane.domain).or_default().push(x);
            let mut add = |points: Vec<(u32, u32)>| {
                picture.lines.push(Line { kind: LineKind::Lane(lane.domain), points, label: None });
            };
            if lane.to > lane.from {
                add(vec![(x, lane.from), (x, lane.to)]);
            }
            for stop in &lane.stops {
                let (left, top) = (corner(lane.column), grid.places[stop.host].1);
                let way = &hosts[stop.host].ports[stop.port].points;
                let way = way.iter().map(|point| (point.0 + left, point.1 + top));
                add([(x, stop.y)].into_iter().chain(way).collect());
            }
        }
        for (domain, y) in &self.above {
            let ends = reach.get(domain).map(Vec::as_slice).unwrap_or_default();
            if let (Some(left), Some(right)) = (ends.iter().min(), ends.iter().max()) {
                let points = vec![(*left, *y), (*right, *y)];
                picture.lines.push(Line { kind: LineKind::Lane(*domain), points, label: None });
            }
        }
    }
}
