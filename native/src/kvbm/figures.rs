//! The daemon's figures: one flat list of names and values, for metrics and for people.

use super::commands::Figure;
use super::hub::Hub;
use super::remote::Remote;
use super::{disk::Disk, Refusal};

impl Hub {
    pub(super) fn figures(&self) -> Vec<(&'static str, Figure)> {
        let stats = &self.stats;
        let mut out: Vec<(&'static str, Figure)> = [
            ("sessions", self.sessions() as u64),
            ("jobs_under_way", self.works.len() as u64),
            ("connections_accepted", stats.accepted),
            ("connections_refused_uid", stats.refused_uid),
            ("connections_refused_full", stats.refused_full),
            ("bad_frames", stats.bad_frames),
            ("lookups", stats.lookups),
            ("lookup_keys", stats.lookup_keys),
            ("hits", stats.hits),
            ("jobs", stats.jobs),
            ("timeouts", stats.timeouts),
            ("cancelled", stats.cancelled),
            ("probe_differs", stats.probe_differs),
            ("beats_late", stats.beats_late),
            ("changes", self.log.next() - 1),
        ]
        .map(|(name, value)| (name, Figure::Count(value)))
        .into();
        let [missed, host, disk, remote] = self.reported.blocks;
        let found = [
            ("found_lookups", self.reported.lookups),
            ("found_missed", missed),
            ("found_host", host),
            ("found_disk", disk),
            ("found_remote", remote),
            ("found_gated", self.reported.gated),
            ("ahead_brought", self.ahead.brought),
            ("ahead_dropped", self.ahead.dropped),
        ];
        out.extend(found.map(|(name, value)| (name, Figure::Count(value))));
        out.push(("boot", Figure::Text(format!("{:016x}", self.boot))));
        if let Some(table) = &self.table {
            out.push(("table_blocks", Figure::Count(table.len())));
            out.push(("table_left_out", Figure::Count(table.left_out())));
            out.push(("table_bytes", Figure::Count(table.bytes() as u64)));
        }
        if let Some(host) = &self.host {
            let counts = [
                ("host_blocks", host.len() as u64),
                ("host_used_bytes", host.used_bytes()),
                ("host_capacity_bytes", host.arena.capacity()),
                ("host_held", host.held() as u64),
                ("host_committed", host.stats.committed),
                ("host_filled", host.stats.filled),
                ("host_hits", host.stats.hits),
                ("host_evicted", host.stats.evicted),
                ("host_full", host.stats.full),
            ];
            out.extend(counts.map(|(name, value)| (name, Figure::Count(value))));
        }
        if let Some(disk) = &self.disk {
            disk_figures(disk, &mut out);
        }
        if let Some(remote) = &self.remote {
            remote_figures(remote, &mut out);
        }
        out
    }
}

fn remote_figures(remote: &Remote, out: &mut Vec<(&'static str, Figure)>) {
    let (stats, (fetches, sends)) = (&remote.stats, remote.desk.waiting());
    let (latency_us, us_per_mib, waiting_bytes) = remote.cost();
    let counts = [
        ("remote_blocks", remote.len() as u64),
        ("remote_bundles", remote.places.bundles() as u64),
        ("remote_fetches", stats.fetches),
        ("remote_fetched", stats.fetched),
        ("remote_fetched_bytes", stats.fetched_bytes),
        ("remote_absent", stats.absent),
        ("remote_failed", stats.failed),
        ("remote_corrupt", stats.corrupt),
        ("remote_refused", stats.refused),
        ("remote_left_out", stats.left_out),
        ("remote_unlisted", stats.unlisted),
        ("remote_sends_dropped", stats.sends_dropped),
        ("remote_under_way", remote.wants() as u64),
        ("remote_waiting_bytes", waiting_bytes),
        ("remote_queued_fetches", fetches as u64),
        ("remote_queued_sends", (sends + remote.gathered()) as u64),
        ("remote_latency_us", latency_us),
        ("remote_us_per_mib", us_per_mib as u64),
        ("remote_good", u64::from(!remote.is_paused)),
    ];
    out.extend(counts.map(|(name, value)| (name, Figure::Count(value))));
}

fn disk_figures(disk: &Disk, out: &mut Vec<(&'static str, Figure)>) {
    let (stats, space) = (&disk.stats, disk.space());
    let counts = [
        ("disk_blocks", disk.catalog().len() as u64),
        ("disk_payload_bytes", disk.catalog().payload_bytes()),
        ("disk_used_bytes", space.used()),
        ("disk_other_bytes", space.other),
        ("disk_capacity_bytes", space.capacity),
        ("disk_index_bytes", disk.catalog().memory() as u64),
        ("disk_pinned_segments", disk.pinned() as u64),
        ("disk_queued_loads", disk.queued_loads() as u64),
        ("disk_queued_store_bytes", disk.queued_store_bytes()),
        ("disk_stored", stats.stored),
        ("disk_stored_bytes", stats.stored_bytes),
        ("disk_loaded", stats.loaded),
        ("disk_loaded_bytes", stats.loaded_bytes),
        ("disk_deduped", stats.deduped),
        ("disk_store_failed", stats.store_failed),
        ("disk_load_failed", stats.load_failed),
        ("disk_corrupt", stats.corrupt),
        ("disk_evicted", stats.evicted),
        ("disk_dropped", stats.dropped),
        ("disk_reinserted", stats.reinserted),
        ("disk_reinserted_bytes", stats.reinserted_bytes),
        ("disk_segments_freed", stats.segments_freed),
        ("disk_synced", stats.synced),
        ("disk_checkpoints", stats.checkpoints),
        ("disk_io_errors", stats.io_errors),
        ("disk_scrubbed", stats.scrubbed),
        ("disk_recovered", stats.recovered),
        ("disk_recovery_us", stats.recovery_us),
        ("disk_refused_absent", stats.refused[Refusal::Absent as usize]),
        ("disk_refused_too_large", stats.refused[Refusal::TooLarge as usize]),
        ("disk_refused_policy", stats.refused[Refusal::Policy as usize]),
        ("disk_refused_budget", stats.refused[Refusal::Budget as usize]),
        ("disk_refused_busy", stats.refused[Refusal::Busy as usize]),
        ("disk_refused_degraded", stats.refused[Refusal::Degraded as usize]),
        ("disk_direct", u64::from(disk.is_direct())),
        ("disk_good", u64::from(disk.health().is_good())),
    ];
    out.extend(counts.map(|(name, value)| (name, Figure::Count(value))));
    let trouble = disk.health().trouble().map_or(String::new(), |trouble| trouble.what.clone());
    out.push(("disk_trouble", Figure::Text(trouble)));
    out.push(("disk_io", Figure::Text(disk.io_name().into())));
}
