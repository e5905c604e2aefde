//! Drops on an operator's command.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::daemon::{figure, hub_options, Engine};
use super::harness::Dir;
use crate::kvbm::commands::Command;
use crate::kvbm::core::Core;
use crate::kvbm::hub::HubOptions;
use crate::kvbm::remote::{Bundling, RemoteOptions, Upload};

#[test]
fn what_nobody_is_told_to_delete_is_known_again() {
    let dir = Dir::new();
    let remote = RemoteOptions { known_max: 100, upload: Upload::Off, bundling: Bundling::OFF };
    let core = Core::start(HubOptions { remote: Some(remote), ..hub_options(&dir) }).unwrap();
    let mut engine = Engine::up(&dir);
    engine.store(&[(1, 0)]);
    let namespace = engine.client.link().welcome.unwrap().fingerprint;
    let (keys, wait) = (vec![engine.key(1), engine.key(2)], Duration::from_secs(10));
    let known = |reply| Command::RemoteKnown { namespace, keys: keys.clone(), reply };
    assert_eq!(core.ask(known, wait), Some(2));
    // One of them waits for the disk, the other one for nobody; who asked has given up.
    for key in &keys {
        let (reply, answer) = sync_channel(1);
        drop(answer);
        core.tell(Command::Drop { namespace, keys: vec![*key], is_local: false, reply });
    }
    engine.until(|_| (figure(&core, "disk_blocks") == 0).then_some(()));
    engine.until(|_| (figure(&core, "remote_blocks") == 2).then_some(()));
    let drop = |reply| Command::Drop { namespace, keys: keys.clone(), is_local: false, reply };
    assert_eq!(core.ask(drop, wait).map(|dropped| dropped.errands.len()), Some(2));
    assert_eq!(figure(&core, "remote_blocks"), 0);
}
