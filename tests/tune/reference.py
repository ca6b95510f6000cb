"""Triton's batcher once more, written as its threads are: slow, plain, and sharing no code with the simulator."""

import heapq
import random


class World:
    def __init__(self, setting, rows, cycles, jitter):
        self.setting, self.cycles, self.jitter = setting, cycles, jitter
        self.delay = setting.delay * 1e-6
        self.preferred = set(setting.preferred) or {setting.max_batch}
        self.queue = []  # rows that wait, in the order in which they came
        self.late = []  # rows that expired under the action "delay"
        self.ready = []  # payloads that wait for an instance
        self.waiting_instances = setting.instances
        self.executed = []  # (finish, rows)
        self.rejected = []
        self.saturated, self.next_preferred = False, 0
        self.current = {"rows": [], "state": "new", "closed": False}
        self.clock = [(row["time"], 1, index, "arrive", row) for index, row in enumerate(rows)]
        heapq.heapify(self.clock)
        self.serial = len(rows)
        self.nap, self.napping_until, self.asleep = 0, None, 0.0
        self.luck = random.Random(0)

    def at(self, time, order, what, subject):
        self.serial += 1
        heapq.heappush(self.clock, (time, order, self.serial, what, subject))

    def run(self):
        while self.clock:
            self.now, _, _, what, subject = heapq.heappop(self.clock)
            if what == "arrive":
                self.arrive(subject)
            elif what == "done":
                hungry = bool(self.queue or self.late) and not self.slot()
                self.waiting_instances += 1
                self.feed()
                if hungry and not self.setting.prefetches and self.luck.random() < 1 / 3:
                    self.nap += 1  # looked too early: only an arrival or the regular look wakes it
                    self.at(self.now + 0.5, 2, "nap", self.nap)
                    self.napping_until = self.now + 0.5
                else:
                    self.think()
            elif subject == self.nap:
                self.think()
        return self

    def policy(self, row):
        return dict(self.setting.level_policies).get(row["priority"], self.setting.policy)

    def expiry(self, row):
        timeout = self.policy(row).timeout
        return row["time"] + timeout * 1e-6 if timeout else None

    def arrive(self, row):
        limit = self.policy(row).max_size
        mine = [r for r in self.queue + self.late if r["priority"] == row["priority"]]
        if limit and len(mine) >= limit:
            self.rejected.append(row["number"])
            return
        self.queue.append(row)
        queued = sum(r["size"] for r in self.queue + self.late)
        stale = self.saturated or self.current["state"] == "taken"
        if self.slot() and (stale or self.setting.free_axes or queued >= self.next_preferred):
            self.think()
        elif self.napping_until is None and self.current["state"] == "new":
            looks = self.asleep
            while looks < self.now:
                looks += 0.5
            self.at(looks, 2, "nap", self.nap)
            self.napping_until = looks

    def slot(self):
        if self.setting.prefetches:
            return len(self.ready) < 2 * self.setting.instances
        return self.waiting_instances > 0

    def feed(self):
        while self.ready and self.waiting_instances:
            payload = self.ready.pop(0)
            payload["state"] = "taken"
            rows = payload["rows"]
            while self.delay and self.ready and not payload["closed"] and not self.ready[0]["closed"]:
                front = self.ready[0]
                if not self.now - min(r["time"] for r in front["rows"]) > self.delay:
                    break
                front["state"] = "taken"
                total = sum(r["size"] for r in rows + front["rows"])
                if total > self.setting.max_batch or front["rows"][0]["shape"] != rows[0]["shape"]:
                    break
                rows.extend(front["rows"])
                self.ready.pop(0)
            self.waiting_instances -= 1
            samples = sum(r["size"] for r in rows)
            factor = self.jitter[len(self.executed) % len(self.jitter)]
            finish = self.now + self.cycles[rows[0]["shape"]][samples] * factor
            self.executed.append((finish, [r["number"] for r in rows]))
            self.at(finish, 0, "done", None)

    def think(self):
        self.nap += 1
        self.napping_until = None
        while True:
            if self.saturated or self.current["state"] == "taken":
                self.current = {"rows": [], "state": "new", "closed": False}
                self.saturated, self.next_preferred = False, 0
            if not (self.queue or self.late) or not self.slot():
                self.asleep = self.now
                return
            chosen, until = self.look()
            if until is not None:
                self.at(until, 2, "nap", self.nap)
                self.napping_until = until
                return
            if not chosen and not self.saturated:
                if self.queue or self.late:
                    return  # spins until an instance takes the payload
                continue
            for row in chosen:
                (self.queue if row in self.queue else self.late).remove(row)
                self.current["rows"].append(row)
            if chosen and self.current["state"] == "new":
                self.current["state"] = "scheduled"
                self.ready.append(self.current)
                self.feed()

    def offered(self):
        """Rows in the order in which they are served: by level, the expired ones last."""
        for level in sorted({r["priority"] for r in self.queue + self.late}):
            for row in [r for r in self.queue if r["priority"] == level]:
                expiry = self.expiry(row)
                if expiry is not None and self.now > expiry:
                    self.queue.remove(row)
                    if self.policy(row).action == "delay":
                        self.late.append(row)
                    else:
                        self.rejected.append(row["number"])
                else:
                    yield row, expiry
            for row in [r for r in self.late if r["priority"] == level]:
                yield row, None

    def look(self):
        base = sum(r["size"] for r in self.current["rows"])
        top, most = max(self.preferred), self.setting.max_batch
        batch, expiries, best, send = [], [], None, False
        for row, expiry in self.offered():
            so_far = base + sum(r["size"] for r in batch)
            if so_far:
                if so_far + row["size"] > top and not best:
                    best, self.saturated = list(batch), True
                if so_far + row["size"] > most:
                    send = True
                    break
                if (self.current["rows"] or batch)[0]["shape"] != row["shape"]:
                    self.current["closed"] = send = True
                    break
            batch.append(row)
            expiries.append(expiry)
            if so_far + row["size"] in self.preferred:
                best = list(batch)
        oldest = min((r["time"] for r in batch), default=None)
        late = bool(self.delay) and oldest is not None and self.now >= oldest + self.delay
        if best and not late:
            self.saturated = self.saturated or not self.delay
            return best, None
        if not batch:
            return [], None
        total = base + sum(r["size"] for r in batch)
        if send or total >= top:
            self.saturated = True
            return batch, None
        if late or not self.delay:
            return batch, None
        larger = [size for size in self.preferred if size > total]
        self.next_preferred = (min(larger) if larger else min(self.preferred)) - base
        if not self.saturated and base and base not in self.preferred:
            return batch, None
        return [], min([oldest + self.delay, *(e + 1e-6 for e in expiries if e is not None)])
