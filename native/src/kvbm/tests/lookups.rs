//! Lookups without a round trip.

use super::daemon::{figure, hub_options, Engine};
use super::harness::Dir;
use crate::kvbm::core::Core;
use crate::kvbm::hub::HubOptions;
use crate::kvbm::link::State;
use crate::kvbm::message::tier;

#[test]
fn lookups_are_answered_from_shared_memory_unless_it_is_too_small() {
    let dir = Dir::new();
    let core = Core::start(hub_options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    engine.store(&[(1, 0), (2, 1)]);
    assert_eq!(engine.lookup(1..4), [2, 2, 0]);
    assert_eq!((engine.client.stats.lookups, figure(&core, "lookups")), (0, 0));
    drop(core);
    let mut small = HubOptions { table_blocks: 1, ..hub_options(&dir) };
    if let Some(disk) = &mut small.disk {
        disk.capacity = 128 << 20;
    }
    let core = Core::start(small).unwrap();
    engine.until(|engine| (engine.client.connect() == State::Up).then_some(()));
    let many: Vec<(u64, u32)> = (0..64).map(|n| (100 + n, n as u32)).collect();
    // Filled over and over until some block finds no room.
    for round in 0..40 {
        let blocks: Vec<_> = many.iter().map(|&(n, slot)| (n + 64 * round, slot)).collect();
        engine.store(&blocks);
    }
    assert!(figure(&core, "table_left_out") > 0);
    assert_eq!(engine.lookup(5000..5001), [tier::MISS]);
    assert!(figure(&core, "lookups") > 0);
}
