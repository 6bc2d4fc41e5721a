//! The topology as JSON for programs.

use serde_json::{Value, json};

use super::plan::Plan;
use super::run::Topology;

impl Topology {
    /// The topology as one JSON object: `run`, `count`, `hosts`, `members`, `gpus`, `multimem_domains`,
    /// `multimem_tier`, `tier_reason`, `gpu_class`.
    ///
    /// A member's `gpus` and a domain's are positions in `gpus`; its `share` is what an executor takes that bootstrap
    /// makes, and its `groups` are those of its plan, narrowest first. Its `addresses` are those that it published to other
    /// hosts, each with the reason, and `addresses_left_out` the others; `null` in a run where nobody listened.
    #[must_use]
    pub fn to_json(&self) -> String {
        let members = self.members().iter().map(|member| {
            let introduction = &member.introduction;
            let host = self.hosts.iter().position(|host| host.members.contains(&member.index));
            let share = self.share(member.index);
            let groups = Plan::derive(self, member.index).groups;
            json!({
                "index": member.index,
                "host": host,
                "host_name": introduction.process.host_name,
                "pid": introduction.process.pid,
                "launcher": introduction.launcher,
                "local_index": introduction.local_index,
                "cores": introduction.cores,
                "quota_cores": introduction.quota_cores,
                "share": share.map(|share| json!({
                    "threads": share.threads,
                    "cores": share.cores,
                    "memory_domains": share.memory_domains,
                })),
                "gpus": self.gpus_of(member.index),
                "addresses": self.addresses_of(member.index).map(|told| &told.addresses),
                "addresses_left_out": self.addresses_of(member.index).map(|told| &told.left_out),
                "groups": groups.iter().map(|group| json!({
                    "name": group.name, "seats": group.seats, "own_seat": group.own,
                })).collect::<Vec<_>>(),
            })
        });
        let hosts = self.hosts.iter().map(|host| {
            let survey = host.members.first().and_then(|index| self.survey(*index));
            json!({
                "name": host.name,
                "boot_id": host.boot_id,
                "members": host.members,
                "readable": host.readable,
                "cores": survey.map(|survey| survey.cores.len()),
                "memory_domains": survey.map(|survey| &survey.memory_domains),
                "cpu_class": survey.and_then(|survey| survey.cpu_classes.last()).map(|class| class.name()),
            })
        });
        let value = json!({
            "run": self.run(),
            "count": self.count(),
            "hosts": hosts.collect::<Vec<_>>(),
            "members": members.collect::<Vec<Value>>(),
            "gpus": self.gpus,
            "multimem_domains": self.domains,
            "multimem_tier": self.tier.name(),
            "tier_reason": self.tier_reason,
            "gpu_class": self.gpu_class.map(|class| class.name()),
        });
        format!("{value:#}")
    }
}
