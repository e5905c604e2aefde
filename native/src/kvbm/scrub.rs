//! Reading everything once to see whether it is still what was written.

use std::collections::VecDeque;

use super::disk::Disk;
use super::loads::{Block, Flight};
use super::record;

/// Blocks fetched from the catalog at once.
const BATCH: u32 = 1024;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubReport {
    pub checked: u64,
    pub bytes: u64,
    /// Forgotten because they could not be read or were not what was written.
    pub bad: u64,
    pub is_done: bool,
}

pub(super) struct Scrub {
    /// Bytes a second, 0 for no limit.
    rate: u64,
    cursor: Option<u32>,
    waiting: VecDeque<Block>,
    under_way: usize,
    began_us: u64,
    report: ScrubReport,
}

impl Disk {
    /// Begin to verify every block; loads and stores go first.
    pub fn scrub(&mut self, rate: u64) {
        self.scrub = Some(Scrub {
            rate,
            cursor: Some(0),
            waiting: VecDeque::new(),
            under_way: 0,
            began_us: self.now_us,
            report: ScrubReport::default(),
        });
    }

    pub fn scrub_report(&self) -> Option<ScrubReport> {
        self.scrub.as_ref().map(|scrub| scrub.report)
    }

    pub(super) fn pump_scrub(&mut self) {
        let Some(mut scrub) = self.scrub.take() else { return };
        while !scrub.report.is_done
            && scrub.under_way < 4
            && self.loads.is_empty()
            && self.in_flight < self.options.depth / 2 + 1
            && self.is_due(&scrub)
        {
            let Some(block) = self.next_to_scrub(&mut scrub) else {
                scrub.report.is_done = scrub.under_way == 0 || self.is_closing;
                break;
            };
            let here = self.catalog.get(block.namespace, &block.key);
            if here.is_none_or(|at| self.catalog.known(at).place != block.place) {
                continue;
            }
            let Some(buffer) = self.pool.take(record::bytes(block.place.len as usize)) else {
                scrub.waiting.push_front(block);
                break;
            };
            scrub.under_way += 1;
            scrub.report.bytes += buffer.len() as u64;
            self.launch_read(Flight::Scrub { block }, buffer);
        }
        self.scrub = Some(scrub);
    }

    pub(super) fn scrub_read(&mut self, good: bool) {
        self.stats.scrubbed += 1;
        if let Some(scrub) = &mut self.scrub {
            scrub.under_way = scrub.under_way.saturating_sub(1);
            scrub.report.checked += 1;
            scrub.report.bad += u64::from(!good);
        }
    }

    fn is_due(&self, scrub: &Scrub) -> bool {
        let allowed = (self.now_us - scrub.began_us) as f64 / 1e6 * scrub.rate as f64;
        scrub.rate == 0 || scrub.report.bytes as f64 <= allowed
    }

    fn next_to_scrub(&self, scrub: &mut Scrub) -> Option<Block> {
        while scrub.waiting.is_empty() && !self.is_closing {
            let waiting = &mut scrub.waiting;
            scrub.cursor = self.catalog.walk(scrub.cursor?, BATCH, |known| {
                let (namespace, key, place) = (known.namespace, known.key, known.place);
                waiting.push_back(Block { namespace, key, place });
            });
        }
        scrub.waiting.pop_front()
    }
}
