//! The daemon as the rest of its process sees it: started, asked, stopped.

use std::io;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::commands::Command;
use super::hub::{Hub, HubOptions};
use super::inbox::Inbox;
use super::remote::Desk;

pub struct Core {
    commands: Arc<Inbox<Command>>,
    desk: Arc<Desk>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Core {
    /// Open everything and begin to serve; errors are for people.
    pub fn start(options: HubOptions) -> io::Result<Self> {
        let commands = Arc::new(Inbox::new()?);
        let desk = Arc::new(Desk::default());
        let hub = Hub::open(options, Arc::clone(&commands), Arc::clone(&desk))?;
        let builder = std::thread::Builder::new().name("kvbm-core".into());
        let thread = builder.spawn(move || hub.run())?;
        Ok(Self { commands, desk, thread: Mutex::new(Some(thread)) })
    }

    /// Ask and wait; None: no answer in time.
    pub fn ask<T>(
        &self,
        command: impl FnOnce(SyncSender<T>) -> Command,
        patience: Duration,
    ) -> Option<T> {
        let (reply, answer) = sync_channel(1);
        self.commands.push(command(reply));
        answer.recv_timeout(patience).ok()
    }

    /// Ask several things at once and wait for all; None: some were not answered in time.
    pub fn ask_each<T>(
        &self,
        commands: impl Iterator<Item = impl FnOnce(SyncSender<T>) -> Command>,
        patience: Duration,
    ) -> Option<Vec<T>> {
        let mut answers = Vec::new();
        for command in commands {
            let (reply, answer) = sync_channel(1);
            self.commands.push(command(reply));
            answers.push(answer);
        }
        let end = Instant::now() + patience;
        let wait = |answer: &Receiver<T>| {
            answer.recv_timeout(end.saturating_duration_since(Instant::now())).ok()
        };
        answers.iter().map(wait).collect()
    }

    /// Say something that is not answered.
    pub fn tell(&self, command: Command) {
        self.commands.push(command);
    }

    /// Where the remote tier's errands wait.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    pub fn is_running(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// End what is under way, flush, close. Waits for all that.
    pub fn stop(&self) {
        self.commands.push(Command::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.stop();
    }
}
