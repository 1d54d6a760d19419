//! What befalls processes and store, and how it is undone.

use std::time::Duration;

use timertask::Timestamp;
use timertask::key::Fence;
use timertask::seam::{Applied, PlanOp};
use timertask_examples::process::{Signal, limit_files, signal};

use super::{Conductor, now};
use crate::Result;
use crate::faults::Fault;
use crate::store::{Outage, Store, nap};

/// What is undone at its time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undo {
    /// The process was killed.
    Start(usize),
    /// It was frozen.
    Thaw(usize),
    /// Its clock was set wrong.
    Skew(usize),
    /// The store was away.
    Restore(Outage),
    /// The disk was full.
    Room,
    /// The host's clock was so many microseconds ahead.
    Return(i64),
    /// The plan `paused` was paused: since when, and under which fence.
    Resume(Timestamp, Fence),
}

impl Conductor<'_> {
    fn kill(&mut self, node: usize) -> Result<()> {
        self.timeline.up(node, false, now());
        if let Some(process) = self.nodes[node].process.take() {
            let id = process.id();
            process.kill()?;
            self.guard.forget(id)?;
            self.injected.killed += 1;
            self.note(format!("node-{node} is killed"));
        }
        Ok(())
    }

    /// One that nothing is the matter with, if another such is left.
    fn victim(&mut self) -> Option<usize> {
        let free: Vec<usize> = (0..self.nodes.len()).filter(|n| self.nodes[*n].is_free()).collect();
        if free.len() < 2 { None } else { self.random.pick(&free) }
    }

    /// A time in microseconds, between these bounds in milliseconds; a third of that in a short run.
    pub(super) fn for_a_while(&mut self, from: u64, to: u64) -> i64 {
        let millis = self.random.between(from, to) / if self.is_short() { 3 } else { 1 };
        i64::try_from(millis * 1_000).unwrap_or(i64::MAX)
    }

    fn later(&mut self, micros: i64, undo: Undo) {
        self.undo.push((now() + micros, undo));
    }

    pub(super) fn inject(&mut self, fault: Fault, end: i64) -> Result<()> {
        match fault {
            Fault::Kill => {
                let Some(node) = self.victim() else { return Ok(()) };
                self.kill(node)?;
                let pause = self.for_a_while(500, 8_000);
                self.later(pause, Undo::Start(node));
            }
            Fault::KillAll => {
                let pause = self.for_a_while(500, 10_000);
                for node in 0..self.nodes.len() {
                    if self.nodes[node].process.is_some() && !self.nodes[node].frozen {
                        self.kill(node)?;
                        self.later(pause, Undo::Start(node));
                    }
                }
            }
            // Where the store has a trouble already, one could not tell whether this process holds it up, too.
            Fault::Freeze | Fault::FreezeLong if self.troubled && !self.args.on_redis => {}
            Fault::Freeze => {
                let pause = self.for_a_while(300, 6_000);
                if self.freeze(pause)? {
                    self.injected.frozen += 1;
                }
            }
            Fault::FreezeLong => {
                let pause = self.random.between(65_000_000, 80_000_000);
                let pause = i64::try_from(pause)?;
                if now() + pause < end && self.freeze(pause)? {
                    self.injected.frozen_long += 1;
                }
            }
            Fault::Outage if !self.troubled => self.outage()?,
            Fault::Full if !self.troubled => self.full()?,
            Fault::StepSmall => self.step(500_000, 3_000_000)?,
            Fault::StepLarge => self.step(7_000_000, 40_000_000)?,
            Fault::Excursion => self.excursion()?,
            Fault::Edit => {
                self.table = self.table.edited();
                self.publish()?;
            }
            Fault::Switch => {
                self.table.switched = !self.table.switched;
                self.publish()?;
            }
            Fault::Pause if !self.troubled && !self.paused => self.pause()?,
            // A store has one trouble at a time, and a plan one pause.
            Fault::Outage | Fault::Full | Fault::Pause => {}
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        self.table.write(&self.folder.file("plans"))?;
        self.injected.edits += 1;
        self.note(format!("{:?}", self.table));
        Ok(())
    }

    fn freeze(&mut self, pause: i64) -> Result<bool> {
        let Some(node) = self.victim() else { return Ok(false) };
        let since = now();
        self.timeline.frozen(node, true, since);
        if let Some(process) = &self.nodes[node].process {
            signal(process.id(), Signal::STOP)?;
        }
        self.nodes[node].frozen = true;
        if !self.troubled && self.store.is_held()? {
            self.troubled = true;
            self.timeline.store(true, false, since);
            self.held_by = Some(node);
            self.note(format!("node-{node} was about to write, and holds up the others"));
        }
        self.later(pause, Undo::Thaw(node));
        self.note(format!("node-{node} is frozen for {} ms", pause / 1000));
        Ok(true)
    }

    fn outage(&mut self) -> Result<()> {
        let how = self.random.pick(&Outage::ALL).unwrap_or(Outage::Hard);
        self.trouble();
        self.with_server(|store| store.fail(how))?;
        if self.args.on_redis && matches!(how, Outage::Hard | Outage::Soft) {
            self.injected.restarts += 1;
        } else {
            self.injected.outages += 1;
        }
        self.out(format!("the store goes away: {how:?}"));
        let pause = self.for_a_while(1_000, 12_000);
        self.later(pause, Undo::Restore(how));
        Ok(())
    }

    /// No file may grow any more; or nothing can be written at all.
    fn full(&mut self) -> Result<()> {
        self.trouble();
        // A little more than there is, so that the next write is cut short.
        let limit = self.store.size() + self.random.between(1, 200);
        let limit = self.random.pick(&[0, limit]).unwrap_or(0);
        self.store.limit(limit)?;
        self.limit_processes(Some(limit))?;
        self.injected.full += 1;
        let text = format!("no file may have more than {limit} bytes");
        // Room that a file has already, SQLite uses again.
        if limit == 0 || self.args.on_redis {
            self.out(text)
        } else {
            self.note(text)
        }
        let pause = self.for_a_while(1_000, 10_000);
        self.later(pause, Undo::Room);
        Ok(())
    }

    /// Does something to the store, after which another process may be its server.
    fn with_server<T>(&mut self, change: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
        let before = self.store.process();
        let done = change(&mut self.store);
        before.map_or(Ok(()), |process| self.guard.forget(process))?;
        self.store.process().map_or(Ok(()), |process| self.guard.watch(process))?;
        done
    }

    fn limit_processes(&mut self, bytes: Option<u64>) -> Result<()> {
        self.limit = bytes;
        for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
            limit_files(process.id(), bytes)?;
        }
        Ok(())
    }

    fn trouble(&mut self) {
        self.troubled = true;
        self.timeline.store(true, false, now());
    }

    /// Nothing can be granted from here on.
    fn out(&mut self, text: String) {
        nap(Duration::from_millis(100));
        self.timeline.store(true, true, now());
        self.note(text);
    }

    /// On SQLite the clock is the host's, and all see it step; on Redis each host has one of its own, and so has the server.
    fn step(&mut self, from: u64, to: u64) -> Result<()> {
        let micros = i64::try_from(self.random.between(from, to))?;
        let micros = self.random.pick(&[micros, -micros]).unwrap_or(micros);
        if self.args.on_redis {
            let Some(node) = self.victim() else { return Ok(()) };
            // The clock that is set and the store's are compared within a call.
            self.timeline.skewed(node, true, micros.abs() > 6_000_000, now());
            self.offsets.set(node, micros)?;
            self.nodes[node].skewed = true;
            let pause = self.for_a_while(2_000, 20_000);
            self.later(pause, Undo::Skew(node));
            self.injected.steps += 1;
            self.note(format!("node-{node}'s clock is off by {} ms", micros / 1000));
            Ok(())
        } else {
            self.set_host(self.timeline.offset() + micros)
        }
    }

    fn excursion(&mut self) -> Result<()> {
        let hours = i64::try_from(self.args.seconds)? * 1_000_000 + 7_200_000_000;
        let pause = self.for_a_while(4_000, 20_000);
        self.later(pause, Undo::Return(hours));
        self.set_host(self.timeline.offset() + hours)
    }

    fn set_host(&mut self, micros: i64) -> Result<()> {
        self.timeline.step(micros, now());
        for place in 0..=self.nodes.len() {
            self.offsets.set(place, micros)?;
        }
        self.injected.steps += 1;
        self.note(format!("the host's clock is off by {} ms", micros / 1000));
        Ok(())
    }

    fn pause(&mut self) -> Result<()> {
        // No instance may have come to opening it yet.
        if !self.witness.generations.contains_key("paused") {
            return Ok(());
        }
        let op = PlanOp::Pause { by: "chaos".to_owned(), why: "to see it wait".to_owned(), until: None };
        let (_, row) = self.tell_plan(op)?;
        let Some(pause) = &row.pause else { return Ok(()) };
        let undo = Undo::Resume(pause.since, row.fence);
        self.paused = true;
        self.injected.pauses += 1;
        self.note("the plan \"paused\" is paused".to_owned());
        let pause = self.for_a_while(2_000, 15_000);
        self.later(pause, undo);
        Ok(())
    }

    pub(super) fn undo_upto(&mut self, upto: i64) -> Result<()> {
        while let Some(place) = self.undo.iter().position(|(at, _)| *at <= upto) {
            let (_, undo) = self.undo.remove(place);
            self.undo_one(undo)?;
        }
        Ok(())
    }

    fn undo_one(&mut self, undo: Undo) -> Result<()> {
        match undo {
            Undo::Start(node) => {
                if self.nodes[node].process.is_none() {
                    self.spawn(node)?;
                }
            }
            Undo::Thaw(node) => {
                if let Some(process) = &self.nodes[node].process {
                    signal(process.id(), Signal::CONT)?;
                }
                self.nodes[node].frozen = false;
                self.timeline.frozen(node, false, now());
                self.note(format!("node-{node} goes on"));
                if self.held_by == Some(node) {
                    self.held_by = None;
                    self.calm("the store is held up no longer".to_owned());
                }
            }
            Undo::Skew(node) => {
                self.offsets.set(node, 0)?;
                self.nodes[node].skewed = false;
                self.timeline.skewed(node, false, false, now());
                self.note(format!("node-{node}'s clock goes right"));
            }
            Undo::Restore(how) => {
                self.timeline.store(true, false, now());
                self.with_server(|store| store.restore(how))?;
                self.calm("the store is back".to_owned());
            }
            Undo::Room => {
                self.timeline.store(true, false, now());
                self.limit_processes(None)?;
                let ended = self.with_server(Store::make_room)?;
                self.injected.restarts += usize::from(ended);
                self.calm("there is room again".to_owned());
            }
            Undo::Return(micros) => self.set_host(self.timeline.offset() - micros)?,
            Undo::Resume(since, fence) if self.troubled => self.later(2_000_000, Undo::Resume(since, fence)),
            Undo::Resume(since, fence) => {
                let (applied, row) = self.tell_plan(PlanOp::Resume { since, lapsed_only: false })?;
                // Where the answer was lost and this is the second time of asking, it has been running since.
                if applied == Applied::Done && row.fence != fence {
                    self.in_pause
                        .push(format!("paused under fence {fence}, and {} was granted before it resumed", row.fence));
                }
                self.paused = false;
                self.note("the plan \"paused\" is resumed".to_owned());
            }
        }
        Ok(())
    }

    fn calm(&mut self, text: String) {
        self.troubled = false;
        self.timeline.store(false, false, now());
        self.note(text);
    }
}
