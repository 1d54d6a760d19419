//! What befalls machines, networks and stores, at one call each.

use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::TimeDelta;
use timertask_core::clock::Clock;

use super::Cluster;

impl Cluster {
    /// Kills a process, as SIGKILL does; see [`ClockView::kill`](crate::ClockView::kill).
    ///
    /// # Panics
    /// Where it does not live.
    ///
    /// # Blocking
    /// Until its stacks are unwound.
    pub fn kill(&mut self, index: usize) {
        self.life(index).view.kill();
        self.clock.note_with(|| format!("instance {index} is killed"));
        self.instances[index].live = None;
    }

    /// Closes an instance, as a deploy does, with so much time for its runs.
    ///
    /// # Panics
    /// Where it does not live.
    ///
    /// # Blocking
    /// Until it is closed; that takes as much simulated time as its runs want, at most `timeout` and two seconds.
    pub fn stop(&mut self, index: usize, timeout: Duration) {
        self.clock.note_with(|| format!("instance {index} is stopped"));
        if let Err(error) = self.life(index).scheduler.close(timeout) {
            panic!("instance {index} did not close: {error}");
        }
        // The process exits with whatever it still holds.
        self.life(index).view.kill();
        self.instances[index].live = None;
    }

    /// Stops a process where it stands, as SIGSTOP does.
    ///
    /// # Panics
    /// Where it does not live.
    pub fn freeze(&mut self, index: usize) {
        self.clock.note_with(|| format!("instance {index} is frozen"));
        self.life(index).view.freeze();
        self.refit(index);
    }

    /// Puts an instance's host to sleep, until [`thaw`](Self::thaw).
    ///
    /// # Panics
    /// Where it does not live.
    pub fn suspend(&mut self, index: usize) {
        self.clock.note_with(|| format!("the host of instance {index} sleeps"));
        self.life(index).view.suspend();
        self.refit(index);
    }

    /// Lets a frozen or suspended process go on.
    ///
    /// # Panics
    /// Where it does not live.
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn thaw(&mut self, index: usize) {
        self.clock.note_with(|| format!("instance {index} goes on"));
        self.life(index).view.thaw();
        self.refit(index);
        self.clock.settle();
    }

    /// Sets how far an instance's wall clock is ahead of all others (behind, where negative).
    ///
    /// # Panics
    /// Where it does not live.
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn skew(&mut self, index: usize, skew: TimeDelta) {
        self.clock.note_with(|| format!("instance {index} is skewed by {skew}"));
        let now = self.clock.now();
        let life = self.life_mut(index);
        life.view.set_skew(skew);
        life.fit_since = life.fit_since.map(|_| now);
        self.refit(index);
        self.clock.settle();
    }

    /// Steps all wall clocks, the store's too; see [`FakeClock::step_wall`](crate::FakeClock::step_wall).
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn step_wall(&mut self, by: TimeDelta) {
        self.clock.note_with(|| format!("wall clocks are stepped by {by}"));
        self.lived_until = self.lived_until.max(self.clock.now());
        self.clock.step_wall(by);
        self.everybody_begins_anew();
        self.clock.settle();
    }

    /// All hosts sleep for `d`; see [`FakeClock::suspend`](crate::FakeClock::suspend).
    ///
    /// # Blocking
    /// Until all are at rest.
    pub fn suspend_all(&mut self, d: Duration) {
        self.step_wall(TimeDelta::from_std(d).unwrap_or(TimeDelta::MAX));
    }

    /// Cuts an instance off the store: each call fails at once as unreachable.
    ///
    /// # Panics
    /// Where it does not live.
    pub fn cut_off(&mut self, index: usize) {
        self.clock.note_with(|| format!("instance {index} is cut off"));
        self.life(index).line.cut.store(true, Ordering::Release);
        self.refit(index);
    }

    /// Undoes [`cut_off`](Self::cut_off).
    ///
    /// # Panics
    /// Where it does not live.
    pub fn reconnect(&mut self, index: usize) {
        self.clock.note_with(|| format!("instance {index} is connected"));
        self.life(index).line.cut.store(false, Ordering::Release);
        self.refit(index);
    }
}
