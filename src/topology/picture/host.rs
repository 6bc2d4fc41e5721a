//! One host: its memory domains and cores, its members, and their GPUs with links and hulls, from its own corner.

use std::collections::{BTreeMap, BTreeSet};

use super::super::machine::MemoryDomain;
use super::super::run::Topology;
use super::super::tree::memory_line;
use super::super::words::{counted, size};
use super::{Area, GAP, Kind, LANE, Label, Line, LineKind, Shape, Weight, domain_names, first_fit, fit};
use crate::vocabulary::GpuVendor;

/// The space between a host's edge and what stands in it.
const PAD: u32 = 16;
/// The width of a GPU with the space after it.
const COLUMN: u32 = 144;
/// How many columns stand side by side at most.
const COLUMN_LIMIT: usize = 8;
/// The fewest columns, so that the name of the host has room.
const COLUMN_LEAST: usize = 3;
/// The height of a host's name.
const HEAD: u32 = 42;
/// The least width of a memory domain with the space after it.
const MEMORY_LEAST: u32 = 188;
const MEMORY_HEIGHT: u32 = 56;
const CORES_HEIGHT: u32 = 10;
const MEMBER_HEIGHT: u32 = 52;
const GPU_HEIGHT: u32 = 50;
/// How far a hull reaches beyond its GPUs.
const HULL: u32 = 5;
/// The height of a hull's name.
const HULL_HEAD: u32 = 19;
const BAR_HEIGHT: u32 = 17;
/// The space in which links run from GPUs to a bar.
const STEM: u32 = 10;
/// The space between two levels of links.
const LEVEL: u32 = 14;
/// The most links that are drawn one by one below a row of GPUs.
const LINKS_DRAWN: usize = 12;

/// A hull that its domain's other hulls are to be joined with.
pub(super) struct Port {
    pub(super) domain: usize,
    /// Where the line from the left arrives, and the corners that it takes from there.
    pub(super) points: Vec<(u32, u32)>,
}

/// One host as boxes and lines from its own upper left corner; the first box is the host's.
pub(super) struct HostPart {
    pub(super) area: Area,
    pub(super) shapes: Vec<Shape>,
    pub(super) lines: Vec<Line>,
    pub(super) ports: Vec<Port>,
}

/// How many columns a host needs.
pub(super) fn columns(topology: &Topology, host: usize) -> usize {
    let widths = topology.hosts()[host].members.iter().map(|index| member_columns(topology, *index));
    let memory = topology.memory_domains_of(host).len().min(4) as u32 * MEMORY_LEAST;
    let needed = widths.sum::<usize>().max(memory.div_ceil(COLUMN) as usize);
    needed.clamp(COLUMN_LEAST, COLUMN_LIMIT)
}

fn member_columns(topology: &Topology, index: usize) -> usize {
    topology.gpus_of(index).len().clamp(1, COLUMN_LIMIT)
}

/// Members that stand side by side, each with its first column.
type Row = Vec<(usize, usize)>;

/// GPUs that stand side by side, each with its column.
type GpuRow = Vec<(usize, usize)>;

impl HostPart {
    pub(super) fn of(topology: &Topology, position: usize, columns: usize) -> Self {
        let width = columns as u32 * COLUMN - GAP + 2 * PAD;
        let host = &topology.hosts()[position];
        let line = topology.machine_line(position);
        let name = format!("host {}", host.name);
        let room = width - 2 * PAD;
        let label = |y, text: &str, weight| Label { x: PAD, y, text: fit(text, room, weight), weight };
        let shape = Shape {
            kind: Kind::Host,
            area: Area { x: 0, y: 0, width, height: 0 },
            parent: None,
            labels: vec![label(19, &name, Weight::Name), label(34, &line, Weight::Small)],
            note: format!("{name}: {line}; boot {}", host.boot_id),
        };
        let mut part = Self {
            area: Area { x: 0, y: 0, width, height: HEAD },
            shapes: vec![shape],
            lines: Vec::new(),
            ports: Vec::new(),
        };
        part.memory(topology, position);
        for row in rows(topology, position, columns) {
            part.members(topology, position, &row);
            part.gpus(topology, &row);
        }
        part.area.height += PAD - GAP;
        part.shapes[0].area.height = part.area.height;
        part
    }

    fn add(&mut self, kind: Kind, area: Area, labels: Vec<Label>, note: String) -> usize {
        self.shapes.push(Shape { kind, area, parent: Some(0), labels, note });
        self.shapes.len() - 1
    }

    /// The memory domains in rows of equal width, each with a strip of its cores.
    fn memory(&mut self, topology: &Topology, position: usize) {
        let domains = topology.memory_domains_of(position);
        let owners = core_owners(topology, position);
        let inner = self.area.width - 2 * PAD;
        let fitting = ((inner + GAP) / MEMORY_LEAST).max(1) as usize;
        let row_count = domains.len().div_ceil(fitting).max(1);
        let in_a_row = domains.len().div_ceil(row_count).max(1);
        let width = (inner + GAP) / in_a_row as u32 - GAP;
        for row in domains.chunks(in_a_row) {
            for (at, domain) in row.iter().enumerate() {
                let x = PAD + at as u32 * (width + GAP);
                let area = Area { x, y: self.area.height, width, height: MEMORY_HEIGHT };
                let words = memory_line(domain);
                let brief = match domain.cores.len() {
                    0 => words.clone(),
                    count => format!("{}, {}", counted(count, "core"), size(domain.memory_bytes)),
                };
                let text = first_fit(&[words.clone(), brief], width - 16, Weight::Small);
                let name = format!("memory domain {}", domain.ordinal);
                let labels = vec![
                    Label { x: x + 8, y: area.y + 15, text: name.clone(), weight: Weight::Plain },
                    Label { x: x + 8, y: area.y + 29, text, weight: Weight::Small },
                ];
                let parent = self.add(Kind::Memory, area, labels, format!("{name}: {words}"));
                self.cores(domain, &area, parent, &owners);
            }
            self.area.height += MEMORY_HEIGHT + GAP;
        }
    }

    /// A strip in which each core has the same width; neighbours of one member are one box.
    fn cores(
        &mut self,
        domain: &MemoryDomain,
        area: &Area,
        parent: usize,
        owners: &BTreeMap<u32, (usize, usize)>,
    ) {
        let (room, count) = (area.width - 16, domain.cores.len() as u32);
        let edge = |at: usize| area.x + 8 + room * at as u32 / count.max(1);
        let mut start = 0;
        while start < domain.cores.len() {
            let owner = owners.get(&domain.cores[start]);
            let same = domain.cores[start..].iter().take_while(|core| owners.get(core) == owner).count();
            let end = start + same;
            let (x, right) = (edge(start), edge(end));
            if right > x {
                let words = super::super::ranges(&domain.cores[start..end]);
                let note = match owner {
                    Some((index, _)) => format!("cores {words}: index {index}"),
                    None => format!("cores {words}: no member"),
                };
                let strip =
                    Area { x, y: area.bottom() - CORES_HEIGHT - 8, width: right - x, height: CORES_HEIGHT };
                let kind = Kind::Cores(owner.map(|(_, seat)| *seat));
                self.shapes.push(Shape { kind, area: strip, parent: Some(parent), labels: Vec::new(), note });
            }
            start = end;
        }
    }

    fn members(&mut self, topology: &Topology, position: usize, row: &Row) {
        for (index, column) in row {
            let width = member_columns(topology, *index) as u32 * COLUMN - GAP;
            let x = PAD + *column as u32 * COLUMN;
            let area = Area { x, y: self.area.height, width, height: MEMBER_HEIGHT };
            let introduction = &topology.members()[*index].introduction;
            let cores = topology.cores_line(*index);
            let mut ways = vec![cores.clone()];
            if let Some(share) = topology.share(*index) {
                let mut own = share.cores;
                own.sort_unstable();
                let count = counted(own.len(), "core");
                ways.extend([format!("cores {}", super::super::ranges(&own)), count]);
            }
            let lines = [
                (format!("index {index}"), Weight::Plain),
                (format!("pid {}", introduction.process.pid), Weight::Small),
                (first_fit(&ways, width - 18, Weight::Small), Weight::Small),
            ];
            let labels = lines.into_iter().zip([15, 29, 43]).map(|((text, weight), y)| Label {
                x: x + 12,
                y: area.y + y,
                text: fit(&text, width - 18, weight),
                weight,
            });
            let seat = topology.hosts()[position].members.iter().position(|own| own == index).unwrap_or(0);
            let note = format!("index {index}: {}, {cores}", introduction.process);
            self.add(Kind::Member(seat), area, labels.collect(), note);
        }
        self.area.height += MEMBER_HEIGHT + GAP;
    }

    /// The GPUs of a row of members, with the hulls behind them.
    fn gpus(&mut self, topology: &Topology, row: &Row) {
        let gpu_rows = gpu_rows(topology, row);
        let domain_of = |gpu: usize| topology.multimem_domains().iter().position(|own| own.contains(gpu));
        let domains = gpu_rows.iter().flatten().map(|(gpu, _)| domain_of(*gpu)).collect::<BTreeSet<_>>();
        if let (1, Some(Some(domain))) = (domains.len(), domains.first()) {
            self.hulls(topology, vec![(*domain, gpu_rows)]);
            return;
        }
        for gpu_row in gpu_rows {
            let mut pieces = Vec::<(usize, Vec<GpuRow>)>::new();
            for (gpu, column) in gpu_row {
                let Some(domain) = domain_of(gpu) else { continue };
                let beside = |piece: &GpuRow| piece.last().is_some_and(|(_, last)| last + 1 == column);
                match pieces.last_mut() {
                    Some((own, piece)) if *own == domain && beside(&piece[0]) => piece[0].push((gpu, column)),
                    _ => pieces.push((domain, vec![vec![(gpu, column)]])),
                }
            }
            self.hulls(topology, pieces);
        }
    }

    /// Hulls side by side, each with rows of GPUs and its links; all become as high as the highest.
    fn hulls(&mut self, topology: &Topology, pieces: Vec<(usize, Vec<GpuRow>)>) {
        let drawings =
            pieces.iter().map(|(domain, rows)| Drawing::of(topology, *domain, rows)).collect::<Vec<_>>();
        let rows_of = |rows: &Vec<GpuRow>| rows.len() as u32 * (GPU_HEIGHT + 8) - 8;
        let heights = pieces.iter().zip(&drawings).map(|((_, rows), own)| rows_of(rows) + own.height());
        let height = heights.max().unwrap_or(0) + HULL_HEAD + 6;
        let mut buses = 0;
        for ((domain, rows), drawing) in pieces.iter().zip(&drawings) {
            let columns = rows.iter().flatten().map(|(_, column)| *column as u32).collect::<BTreeSet<_>>();
            let (Some(first), Some(last)) = (columns.first(), columns.last()) else { continue };
            let x = PAD + first * COLUMN - HULL;
            let width = (last - first + 1) * COLUMN - GAP + 2 * HULL;
            let area = Area { x, y: self.area.height, width, height };
            let hull = self.hull(topology, *domain, area);
            let bottom = self.row_of_gpus(topology, rows, hull);
            self.links(drawing, hull, bottom);
            let whole = rows.iter().flatten().count() == topology.multimem_domains()[*domain].gpus.len();
            if !whole {
                // The first hull of a row is reached from the left, the others from below.
                let points = if *first == 0 {
                    vec![(x, area.y + HULL_HEAD / 2)]
                } else {
                    buses += 1;
                    let y = area.bottom() + buses * LANE;
                    vec![(x + 12, y), (x + 12, area.bottom())]
                };
                self.ports.push(Port { domain: *domain, points });
            }
        }
        self.area.height += height + buses * LANE + GAP;
    }

    fn hull(&mut self, topology: &Topology, number: usize, area: Area) -> usize {
        let domain = &topology.multimem_domains()[number];
        let tier = (domain.gpus.len() > 1).then_some(domain.tier);
        let names = domain_names(number, domain.gpus.len(), tier);
        let label = Label {
            x: area.x + 10,
            y: area.y + 13,
            text: first_fit(&names, area.width - 20, Weight::Small),
            weight: Weight::Small,
        };
        let note = format!("{}: {}", names[0], domain.reason);
        self.add(Kind::Hull { domain: number, tier }, area, vec![label], note)
    }

    /// Draws rows of GPUs into a hull; the answer is the lower edge of the last.
    fn row_of_gpus(&mut self, topology: &Topology, rows: &[GpuRow], hull: usize) -> u32 {
        let mut y = self.area.height + HULL_HEAD;
        for row in rows {
            for (gpu, column) in row {
                let device = &topology.gpus()[*gpu].device;
                let area =
                    Area { x: PAD + *column as u32 * COLUMN, y, width: COLUMN - GAP, height: GPU_HEIGHT };
                let memory = match device.memory_bytes {
                    0 => None,
                    bytes => Some(size(bytes)),
                };
                let near = device.memory_domain.map(|domain| format!("near {domain}"));
                let facts = [memory, near].into_iter().flatten().collect::<Vec<_>>().join(", ");
                let texts = [
                    (format!("GPU {gpu}"), Weight::Plain),
                    (short_name(&device.name).to_owned(), Weight::Small),
                    (facts, Weight::Small),
                ];
                let labels = texts.into_iter().zip([15, 29, 43]).map(|((text, weight), down)| Label {
                    x: area.x + 8,
                    y: y + down,
                    text: fit(&text, area.width - 12, weight),
                    weight,
                });
                let note = format!(
                    "GPU {gpu}: {}, ordinal {} of index {}, {}, PCI {}",
                    device.name,
                    topology.gpus()[*gpu].ordinal,
                    topology.gpus()[*gpu].owner,
                    device.identity,
                    if device.pci_address.is_empty() { "not known" } else { &device.pci_address },
                );
                let (kind, parent) = (Kind::Gpu, Some(hull));
                self.shapes.push(Shape { kind, area, parent, labels: labels.collect(), note });
            }
            y += GPU_HEIGHT + 8;
        }
        y - 8
    }

    /// Draws links below the last row of GPUs, which ends at `bottom`.
    fn links(&mut self, drawing: &Drawing, hull: usize, bottom: u32) {
        let middle = |column: usize| PAD + column as u32 * COLUMN + (COLUMN - GAP) / 2;
        match drawing {
            Drawing::Nothing => {}
            Drawing::Bar { text, brief, stems } => {
                let outer = self.shapes[hull].area;
                let area = Area {
                    x: outer.x + HULL,
                    y: bottom + STEM,
                    width: outer.width - 2 * HULL,
                    height: BAR_HEIGHT,
                };
                let words = first_fit(&[text.clone(), brief.clone()], area.width - 16, Weight::Small);
                let label = Label { x: area.x + 8, y: area.y + 12, text: words, weight: Weight::Small };
                let (labels, note) = (vec![label], text.clone());
                self.shapes.push(Shape { kind: Kind::Bar, area, parent: Some(hull), labels, note });
                self.lines.extend(stems.iter().map(|column| {
                    let x = middle(*column);
                    Line { kind: LineKind::Link, points: vec![(x, bottom), (x, area.y)], label: None }
                }));
            }
            Drawing::Pairs { pairs, .. } => {
                for pair in pairs {
                    let y = bottom + STEM + pair.level as u32 * LEVEL;
                    let from = (middle(pair.from.0) as i32 + pair.from.1) as u32;
                    let to = (middle(pair.to.0) as i32 + pair.to.1) as u32;
                    let points = vec![(from, bottom), (from, y), (to, y), (to, bottom)];
                    let text = format!("{}×", pair.count);
                    let label = Label { x: from + 4, y: y - 2, text, weight: Weight::Small };
                    self.lines.push(Line { kind: LineKind::Link, points, label: Some(label) });
                }
            }
        }
    }
}

/// Members in rows that fill the columns.
fn rows(topology: &Topology, position: usize, columns: usize) -> Vec<Row> {
    let mut rows = Vec::<Row>::new();
    let mut used = columns;
    for index in &topology.hosts()[position].members {
        let own = member_columns(topology, *index);
        if used + own > columns {
            rows.push(Vec::new());
            used = 0;
        }
        if let Some(row) = rows.last_mut() {
            row.push((*index, used));
        }
        used += own;
    }
    rows
}

/// The GPUs below a row of members. Only a lone member has more than one row of them.
fn gpu_rows(topology: &Topology, row: &Row) -> Vec<GpuRow> {
    let mut rows = Vec::<GpuRow>::new();
    for (index, first) in row {
        for (line, gpus) in topology.gpus_of(*index).chunks(COLUMN_LIMIT).enumerate() {
            if rows.len() <= line {
                rows.push(Vec::new());
            }
            rows[line].extend(gpus.iter().enumerate().map(|(at, gpu)| (*gpu, first + at)));
        }
    }
    rows
}

/// The member of each core, as index and as seat in the host; of several the first.
fn core_owners(topology: &Topology, position: usize) -> BTreeMap<u32, (usize, usize)> {
    let mut owners = BTreeMap::new();
    for (seat, index) in topology.hosts()[position].members.iter().enumerate() {
        for core in topology.share(*index).into_iter().flat_map(|share| share.cores) {
            owners.entry(core).or_insert((*index, seat));
        }
    }
    owners
}

/// A product's name without its maker's.
fn short_name(name: &str) -> &str {
    ["NVIDIA ", "AMD Instinct ", "AMD "].iter().find_map(|maker| name.strip_prefix(maker)).unwrap_or(name)
}

/// What is drawn below the GPUs of a hull.
enum Drawing {
    Nothing,
    /// A bar, and the columns from which lines run to it.
    Bar {
        text: String,
        brief: String,
        stems: Vec<usize>,
    },
    /// Links one by one, on this many levels.
    Pairs {
        pairs: Vec<Pair>,
        levels: usize,
    },
}

/// One link between GPUs of a row: the columns of its ends, each with how far beside the middle it ends.
struct Pair {
    from: (usize, i32),
    to: (usize, i32),
    count: u32,
    level: usize,
}

impl Drawing {
    fn of(topology: &Topology, domain: usize, rows: &[GpuRow]) -> Self {
        let seats = rows.iter().flatten().copied().collect::<BTreeMap<_, _>>();
        let stems = rows.last().into_iter().flatten().map(|(_, column)| *column).collect::<Vec<_>>();
        let mut switches = BTreeSet::new();
        let mut pairs = BTreeMap::new();
        let mut outside = false;
        for gpu in seats.keys() {
            for ends in topology.links_of(*gpu) {
                if ends.switch {
                    switches.insert(ends.count);
                }
                outside |= ends.gpus.iter().any(|peer| !seats.contains_key(peer));
                pairs.extend(ends.gpus.iter().map(|peer| ((*gpu.min(peer), *gpu.max(peer)), ends.count)));
            }
        }
        let kind = match topology.multimem_domains()[domain].gpus.first().map(|gpu| &topology.gpus()[*gpu]) {
            Some(gpu) if gpu.device.vendor == GpuVendor::Amd => "xGMI",
            _ => "NVLink",
        };
        if let Some(count) = switches.last() {
            let each =
                if switches.len() == 1 { format!(", {count} links from each GPU") } else { String::new() };
            return Self::Bar {
                text: format!("{kind} switch{each}"),
                brief: "NVLink switch".to_owned(),
                stems,
            };
        }
        if pairs.is_empty() {
            return Self::Nothing;
        }
        let counts = pairs.values().collect::<BTreeSet<_>>();
        // Of each two GPUs of the domain, one of them at least in this hull.
        let (own, all) = (seats.len(), topology.multimem_domains()[domain].gpus.len());
        let complete = pairs.len() == own * (own - 1) / 2 + own * (all - own);
        if complete && counts.len() == 1 && all > 3 {
            let count = counts.first().map_or(0, |count| **count as usize);
            let text = format!("{kind}, {} between each two GPUs of the domain", counted(count, "link"));
            let brief = format!("{kind}, {} to each", counted(count, "link"));
            return Self::Bar { text, brief, stems };
        }
        if outside || rows.len() > 1 || pairs.len() > LINKS_DRAWN {
            let text = format!("{kind} links between some of these and other GPUs of the domain");
            return Self::Bar { text, brief: kind.to_owned(), stems };
        }
        Self::pairs(&seats, &pairs)
    }

    /// Links between GPUs of one row: short ones above long ones, none on another.
    fn pairs(seats: &BTreeMap<usize, usize>, pairs: &BTreeMap<(usize, usize), u32>) -> Self {
        let mut found = pairs
            .iter()
            .filter_map(|((one, other), count)| {
                let (one, other) = (*seats.get(one)?, *seats.get(other)?);
                Some((one.min(other), one.max(other), *count))
            })
            .collect::<Vec<_>>();
        found.sort_by_key(|(from, to, _)| (to - from, *from));
        let mut degree = BTreeMap::<usize, i32>::new();
        for (from, to, _) in &found {
            *degree.entry(*from).or_default() += 1;
            *degree.entry(*to).or_default() += 1;
        }
        let mut taken = BTreeMap::<usize, i32>::new();
        let mut end = |column: usize| {
            let number = taken.entry(column).or_default();
            let offset = (*number * 2 + 1 - degree.get(&column).copied().unwrap_or(1)) * 7;
            *number += 1;
            (column, offset)
        };
        // The level of a link is the first on which nothing stands in its way.
        let mut levels = Vec::<Vec<(usize, usize)>>::new();
        let pairs = found.into_iter().map(|(from, to, count)| {
            let free =
                |level: &Vec<(usize, usize)>| level.iter().all(|(left, right)| to < *left || *right < from);
            let level = levels.iter().position(free).unwrap_or(levels.len());
            if level == levels.len() {
                levels.push(Vec::new());
            }
            levels[level].push((from, to));
            Pair { from: end(from), to: end(to), count, level }
        });
        let pairs = pairs.collect::<Vec<_>>();
        Self::Pairs { levels: levels.len(), pairs }
    }

    fn height(&self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Bar { .. } => STEM + BAR_HEIGHT,
            Self::Pairs { levels, .. } => STEM + *levels as u32 * LEVEL - LEVEL / 2,
        }
    }
}
