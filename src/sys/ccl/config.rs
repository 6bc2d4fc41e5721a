//! The settings of a new communicator, in the newest layout, cut to what the loaded library knows.
//!
//! The library copies as many bytes as both sides know and sets fields that are newer than `version` to their defaults. A
//! version gets the size that its own header gives, so that no library is told of a field that it may have in another place.

use std::ffi::{c_char, c_int, c_uint};

use super::Version;
use crate::vocabulary::GpuVendor;

/// The newest layout that is declared here. A newer library takes it as that of an older program.
pub const NEWEST: Version = Version(23203);

/// The newest layout that RCCL is known to share; later fields are NVIDIA's.
const NEWEST_RCCL: Version = Version(23003);

const MAGIC: c_uint = 0xcafe_beef;

/// What an integer field holds that leaves the choice to the library.
const UNSET: c_int = c_int::MIN;

/// A field of the layout: its name in the header, where it lies, and the first version that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name in the header.
    pub name: &'static str,
    /// The bytes before it.
    pub offset: usize,
    /// Where it ends.
    pub end: usize,
    /// The first version that has it.
    pub since: Version,
}

/// Declares the layout, and the list of its fields.
macro_rules! layout {
    ($($(#[$note:meta])* $field:ident = $name:literal since $since:literal: $type:ty = $default:expr;)+) => {
        /// `ncclConfig_t`.
        #[derive(Debug)]
        #[repr(C)]
        pub struct Config {
            size: usize,
            magic: c_uint,
            version: c_uint,
            $($(#[$note])* $field: $type,)+
        }

        /// The fields that a caller may set, in their order.
        pub const FIELDS: &[Field] = &[$(Field {
            name: $name,
            offset: std::mem::offset_of!(Config, $field),
            end: std::mem::offset_of!(Config, $field) + size_of::<$type>(),
            since: Version($since),
        },)+];

        impl Config {
            /// The settings that leave everything to a library of this version.
            #[must_use]
            pub const fn new(vendor: GpuVendor, version: Version) -> Self {
                let version = known(vendor, version);
                Self { size: size(version), magic: MAGIC, version: version.0, $($field: $default,)+ }
            }
        }
    };
}

layout! {
    blocking = "blocking" since 21403: c_int = UNSET;
    cga_cluster_size = "cgaClusterSize" since 21701: c_int = UNSET;
    min_ctas = "minCTAs" since 21701: c_int = UNSET;
    max_ctas = "maxCTAs" since 21701: c_int = UNSET;
    net_name = "netName" since 21701: *const c_char = std::ptr::null();
    split_share = "splitShare" since 21801: c_int = UNSET;
    traffic_class = "trafficClass" since 22602: c_int = UNSET;
    comm_name = "commName" since 22703: *const c_char = std::ptr::null();
    collnet_enable = "collnetEnable" since 22703: c_int = UNSET;
    cta_policy = "CTAPolicy" since 22703: c_int = UNSET;
    shrink_share = "shrinkShare" since 22703: c_int = UNSET;
    nvls_ctas = "nvlsCTAs" since 22703: c_int = UNSET;
    channels_per_net_peer = "nChannelsPerNetPeer" since 22803: c_int = UNSET;
    nvlink_centric_sched = "nvlinkCentricSched" since 22803: c_int = UNSET;
    graph_usage_mode = "graphUsageMode" since 22902: c_int = UNSET;
    rma_context_count = "numRmaCtx" since 22902: c_int = UNSET;
    max_p2p_peers = "maxP2pPeers" since 23003: c_int = UNSET;
    graph_stream_ordering = "graphStreamOrdering" since 23007: c_int = UNSET;
    launch_order_implicit = "launchOrderImplicit" since 23102: c_int = UNSET;
    rma_signal_count = "numRmaSig" since 23102: c_int = UNSET;
    rma_eager_init = "rmaEagerInit" since 23102: c_int = UNSET;
    host_cft_mode = "hostCftMode" since 23102: c_int = UNSET;
    nvls_host_mode = "nvlsHostMode" since 23203: c_int = UNSET;
}

/// The newest layout that both sides know.
const fn known(vendor: GpuVendor, version: Version) -> Version {
    let newest = if matches!(vendor, GpuVendor::Amd) { NEWEST_RCCL } else { NEWEST };
    if version.0 > newest.0 { newest } else { version }
}

/// The size of the layout in a version: that of its last field, filled up to the alignment of a pointer.
const fn size(version: Version) -> usize {
    let (mut end, mut position) = (0, 0);
    while position < FIELDS.len() {
        if FIELDS[position].since.0 <= version.0 {
            end = FIELDS[position].end;
        }
        position += 1;
    }
    end.next_multiple_of(align_of::<Config>())
}

impl Config {
    /// How many bytes the library is told of.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The version that the library is told of.
    #[must_use]
    pub const fn version(&self) -> Version {
        Version(self.version)
    }

    /// The same, whose calls return before they are done and are asked about afterwards.
    #[must_use]
    pub const fn nonblocking(mut self) -> Self {
        self.blocking = 0;
        self
    }
}
