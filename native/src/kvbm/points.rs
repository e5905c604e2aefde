//! Named places where tests let a store fail or die. Empty in service: one look at a null pointer.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The process ends like with `kill -9`.
    Kill,
    Errno(i32),
    /// It takes so many milliseconds more.
    Wait(u32),
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    trouble: Trouble,
    /// Passages that still go well.
    skip: u64,
    /// Passages that then do not.
    times: u64,
}

#[derive(Clone, Default)]
pub struct Points(Option<Arc<Mutex<HashMap<String, Plan>>>>);

impl Points {
    pub fn for_tests() -> Self {
        Self(Some(Arc::default()))
    }

    /// `name=kill`, `name=errno`, `name=wait:MS`, each with `@skip` behind it, and then `*times`,
    /// separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        let points = Self::for_tests();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let bad = || format!("`{part}` is not like `name=kill@3`, `name=28` or `name=wait:9`");
            let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
            let (name, what) = part.split_once('=').ok_or_else(bad)?;
            let (what, times) = match what.split_once('*') {
                Some((what, times)) => (what, number(times)?),
                None => (what, u64::MAX),
            };
            let (what, skip) = what.split_once('@').unwrap_or((what, "0"));
            let trouble = match what.strip_prefix("wait:") {
                Some(ms) => Trouble::Wait(ms.parse().map_err(|_| bad())?),
                None if what == "kill" => Trouble::Kill,
                None => Trouble::Errno(what.parse().map_err(|_| bad())?),
            };
            points.set(name, trouble, number(skip)?, times);
        }
        Ok(points)
    }

    pub fn set(&self, name: &str, trouble: Trouble, skip: u64, times: u64) {
        if let Some(plans) = &self.0 {
            let mut plans = plans.lock().unwrap_or_else(PoisonError::into_inner);
            plans.insert(name.into(), Plan { trouble, skip, times });
        }
    }

    pub fn clear(&self) {
        if let Some(plans) = &self.0 {
            plans.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Pass a named place.
    pub fn pass(&self, name: &str) -> io::Result<()> {
        match &self.0 {
            None => Ok(()),
            Some(plans) => Self::meet(plans, name),
        }
    }

    #[cold]
    fn meet(plans: &Mutex<HashMap<String, Plan>>, name: &str) -> io::Result<()> {
        let Some(trouble) = Self::due(plans, name) else { return Ok(()) };
        match trouble {
            Trouble::Wait(ms) => {
                std::thread::sleep(std::time::Duration::from_millis(ms.into()));
                Ok(())
            }
            Trouble::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
            Trouble::Kill => {
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                // The signal ends this thread before it runs on.
                loop {
                    std::thread::park();
                }
            }
        }
    }

    fn due(plans: &Mutex<HashMap<String, Plan>>, name: &str) -> Option<Trouble> {
        let mut plans = plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plans.get_mut(name)?;
        if plan.skip > 0 {
            plan.skip -= 1;
            return None;
        }
        plan.times = plan.times.checked_sub(1)?;
        Some(plan.trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_wrong_and_how_often_is_said_in_one_line() {
        let points = Points::parse("a=5@1*2,b=wait:1").unwrap();
        let outcomes: Vec<bool> = (0..5).map(|_| points.pass("a").is_ok()).collect();
        assert_eq!(outcomes, [true, false, false, true, true]);
        assert!(points.pass("b").is_ok() && points.pass("c").is_ok());
        assert!(["a", "a=wait:x", "a=5*x", "a=kill@"]
            .iter()
            .all(|bad| Points::parse(bad).is_err()));
    }
}
