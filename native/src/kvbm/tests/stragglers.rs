//! Whoever is still at a slot of a job that is over for everybody else.

use std::time::Duration;

use super::daemon::{figure, hub_options, Engine};
use super::harness::Dir;
use crate::kvbm::client::Want;
use crate::kvbm::commands::Command;
use crate::kvbm::core::Core;
use crate::kvbm::hub::HubOptions;
use crate::kvbm::mover::Target;
use crate::kvbm::remote::{Bundling, Miss, RemoteOptions, Room, Upload};

const SECOND: u64 = 1_000_000;

#[test]
fn a_load_that_failed_ends_when_nobody_writes_to_its_slots_any_more() {
    let dir = Dir::new();
    let remote = RemoteOptions { known_max: 100, upload: Upload::Off, bundling: Bundling::OFF };
    let options = HubOptions { remote: Some(remote), ..hub_options(&dir) };
    let core = Core::start(options).unwrap();
    let mut engine = Engine::up(&dir);
    let namespace = engine.client.link().welcome.unwrap().fingerprint;
    let (key, wait) = (engine.key(1), Duration::from_secs(10));
    let known = |reply| Command::RemoteKnown { namespace, keys: vec![key], reply };
    assert_eq!(core.ask(known, wait), Some(1));
    let job = engine.begin(Want::Load, &[(1, 3)], 60 * SECOND).unwrap();
    let room = Room { fetches: 9, ahead: 0, sends: 0 };
    let errands = engine.until(|_| core.desk().look(room).filter(|found| !found.is_empty()));
    let piece = &errands[0].pieces[0];
    let Some(Target::Slot(slot)) = piece.landing.as_ref().map(|landing| &landing.target) else {
        panic!("no slot")
    };
    assert!(slot.gate.enter());
    // Somebody else finds that it took too long.
    core.tell(Command::RemoteEnded(vec![(piece.ticket, Err(Miss::Failed))], true));
    assert_eq!(figure(&core, "remote_failed"), 1);
    assert_eq!(figure(&core, "jobs_under_way"), 1);
    assert!(engine.client.poll().is_empty(), "the slot is not the engine's yet");
    assert!(!slot.gate.enter(), "nobody comes in any more");
    slot.gate.leave();
    assert_eq!(engine.end_of(job), [16]);
    assert_eq!(figure(&core, "jobs_under_way"), 0);
}
