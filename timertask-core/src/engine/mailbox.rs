//! How rooms hand things to each other: a queue that is only ever polled, and the signal of the room that polls it.

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::clock::Signal;

/// A queue into a room. What goes in is bounded by what it speaks of (plans, runs, workers), not by the queue, so
/// that no sender ever blocks.
pub(crate) struct Mailbox<T> {
    sender: Sender<T>,
    receiver: Receiver<T>,
    signal: Signal,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = unbounded();
        Self { sender, receiver, signal: Signal::new() }
    }

    /// Puts `item` in and wakes the room.
    pub(crate) fn send(&self, item: T) {
        // The receiver lives as long as the mailbox, so sending cannot fail.
        let _ = self.sender.send(item);
        self.signal.notify();
    }

    pub(crate) fn try_recv(&self) -> Option<T> {
        self.receiver.try_recv().ok()
    }

    pub(crate) fn signal(&self) -> &Signal {
        &self.signal
    }
}
