//! Named places where tests let a store fail or die. Empty in service: one look at a null pointer.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The process ends like with `kill -9`.
    Kill,
    Errno(i32),
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

    /// `name=kill`, `name=errno`, each with `@skip` behind it, separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        let points = Self::for_tests();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let bad = || format!("`{part}` is not like `name=kill@3` or `name=28`");
            let (name, what) = part.split_once('=').ok_or_else(bad)?;
            let (what, skip) = what.split_once('@').unwrap_or((what, "0"));
            let trouble = match what {
                "kill" => Trouble::Kill,
                errno => Trouble::Errno(errno.parse().map_err(|_| bad())?),
            };
            points.set(name, trouble, skip.parse().map_err(|_| bad())?, u64::MAX);
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
        let mut plans = plans.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(plan) = plans.get_mut(name) else { return Ok(()) };
        if plan.skip > 0 {
            plan.skip -= 1;
            return Ok(());
        }
        if plan.times == 0 {
            return Ok(());
        }
        plan.times -= 1;
        match plan.trouble {
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
}
