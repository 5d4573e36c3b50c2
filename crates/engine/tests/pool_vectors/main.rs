//! Replays what amazon-vpc-resource-controller-k8s (VRC) answered to 1,000 random sequences of events on an address pool.
//!
//! VRC's events map one to one to the methods of [`Pool`], which is asked for one step at a time and without waiting pods: VRC
//! knows none. A sequence is compared up to `compare_until`, where a defect of VRC changed its pool. Two defects change an
//! answer only, and [`Replay::expected`] names what is to be answered instead. `POOL_VECTORS` names another file.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "the replayer reads a file and reports counts"
)]

mod config;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;

use flate2::read::GzDecoder;
use mullion_engine::ip::{
    Absent, COOL_DOWN_MS, Cidr, Failure, Goal, Interface, Kind, Listing, PodUid, Pool, Refusal,
    RestartState, Step, Targets, WaitReason,
};
use serde_json::{Value, json};

fn testdata(name: &str) -> String {
    format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Returns the lines of a file of JSON objects, packed or not.
fn lines(path: &str) -> Vec<Value> {
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let reader: Box<dyn BufRead> = if path.ends_with(".gz") {
        Box::new(BufReader::new(GzDecoder::new(file)))
    } else {
        Box::new(BufReader::new(file))
    };
    let line = |line: std::io::Result<String>| {
        serde_json::from_str(&line.expect("readable")).expect("valid JSON")
    };
    reader.lines().map(line).collect()
}

fn cidr(text: &Value) -> Cidr {
    text.as_str()
        .and_then(|text| text.parse().ok())
        .expect("an address with its mask")
}

fn cidrs(texts: &Value) -> Vec<Cidr> {
    texts.as_array().into_iter().flatten().map(cidr).collect()
}

fn uid(step: &Value) -> PodUid {
    PodUid::from(step["pod"].as_str().expect("a pod"))
}

fn number(value: &Value) -> i64 {
    value
        .as_i64()
        .unwrap_or_else(|| panic!("{value} is a number"))
}

fn targets(config: &Value) -> Targets {
    Targets {
        warm_ip: number(&config["warm_ip"]),
        min_ip: number(&config["min_ip"]),
        warm_prefix: number(&config["warm_prefix"]),
    }
}

/// One sequence on its way.
struct Replay {
    kind: Kind,
    pool: Pool,
    absent: Absent,
    slots: usize,
    goal: Goal,
    /// What each call was about: the number of blocks asked for, or the blocks to be given back.
    calls: BTreeMap<i64, Step>,
    /// Whether EC2 said anything yet about prefixes.
    prefix_known: bool,
    /// Whether VRC's `prefixAvailable` is what EC2 said last: a failed give-back sets it.
    prefix_comparable: bool,
}

impl Replay {
    fn new(sequence: &Value) -> Self {
        let kind = if sequence["mode"] == "prefix" {
            Kind::Prefix
        } else {
            Kind::Address
        };
        let mut listing = Listing::default();
        let (mut pods, mut warm) = (Vec::new(), Vec::new());
        let blocks = if kind == Kind::Prefix {
            &mut listing.prefixes
        } else {
            &mut listing.addresses
        };
        for (pod, place) in sequence["initial_used"].as_object().into_iter().flatten() {
            blocks.push(cidr(&place[0]));
            pods.push((PodUid::from(pod.as_str()), cidr(&place[1])));
        }
        for (group, addresses) in sequence["initial_warm"].as_object().into_iter().flatten() {
            blocks.push(cidr(&json!(group)));
            warm.extend(cidrs(addresses).iter().map(|address| address.ip));
        }
        let slots = number(&sequence["capacity"]) as usize / kind.size();
        let targets = targets(&sequence["config"]);
        let state = RestartState {
            listing: &listing,
            pods: &pods,
            warm: &warm,
            giving_back: &[],
        };
        Replay {
            kind,
            pool: Interface::restore(slots as u32, kind, targets, state, 0)
                .pool(kind)
                .clone(),
            absent: Absent::default(),
            slots,
            goal: Goal::Keep(targets),
            calls: BTreeMap::new(),
            prefix_known: false,
            prefix_comparable: false,
        }
    }

    /// Does one step, and returns how the answer or the state after it differs.
    fn step(&mut self, step: &Value) -> Result<(), String> {
        let now = number(&step["t_ms"]) as u64;
        match step["do"].as_str().expect("what to do") {
            "assign" => self.assign(step)?,
            "free" => self.free(step, now)?,
            "drain" => {
                self.pool.warm_up(now);
                same(
                    "more",
                    self.pool.next_warm().is_some(),
                    step["more"] == true,
                )?;
            }
            "reconcile" => self.plan(step)?,
            "configure" => {
                self.goal = Goal::Keep(targets(&step["config"]));
                self.plan(step)?;
            }
            "drain-mode" => {
                self.goal = Goal::Drain;
                self.plan(step)?;
            }
            "job-done" => self.done(step, now),
            "lost-at-ec2" => {}
            other => panic!("unknown step {other}"),
        }
        self.state(&step["then"])
    }

    fn assign(&mut self, step: &Value) -> Result<(), String> {
        let ours = self.pool.take(&uid(step), self.slots, 0);
        let theirs = match step["error"].as_str() {
            None => Ok(cidr(&step["address"])),
            Some(error) => Err(self.expected(error)),
        };
        same("address", &ours, &theirs)?;
        // VRC's handler plans anew after an answer of these kinds.
        let plans = matches!(ours, Ok(_) | Err(Refusal::Waits(WaitReason::Empty)));
        if Some(plans) != step["reconcile"].as_bool()
            && step["error"] != "no-prefix-in-subnet"
            && step["error"] != "empty"
        {
            return Err(format!("reconcile: {plans}"));
        }
        Ok(())
    }

    /// Returns the refusal that is right where VRC answers `error`.
    fn expected(&self, error: &str) -> Refusal {
        match error {
            "at-capacity" => Refusal::Waits(WaitReason::AtCapacity),
            "cooling" => Refusal::Waits(WaitReason::Cooling),
            "creating" => Refusal::Waits(WaitReason::Creating),
            // "no-prefix-told-before-any-was-refused"
            "no-prefix-in-subnet" if !self.prefix_known => Refusal::Waits(WaitReason::Empty),
            "no-prefix-in-subnet" => Refusal::Waits(WaitReason::NoPrefix),
            // "empty-told-instead-of-no-prefix", "prefix-available-by-a-failed-delete"
            "empty" if self.pool.no_prefix() => Refusal::Waits(WaitReason::NoPrefix),
            "empty" => Refusal::Waits(WaitReason::Empty),
            "already-assigned" => Refusal::AlreadyAssigned,
            other => panic!("unknown error {other}"),
        }
    }

    fn free(&mut self, step: &Value, now: u64) -> Result<(), String> {
        // A text that is no address with its mask is nobody's address.
        let address = step["address"]
            .as_str()
            .and_then(|text| text.parse::<Cidr>().ok());
        let ip = address.map_or(Ipv4Addr::UNSPECIFIED, |address| address.ip);
        let ours = self
            .pool
            .release(&uid(step), ip, now + COOL_DOWN_MS, &mut self.absent);
        let theirs = match step["error"].as_str() {
            None => Ok(()),
            Some("not-assigned") => Err(Refusal::NotAssigned),
            Some("not-yours") => Err(Refusal::NotYours),
            Some(other) => panic!("unknown error {other}"),
        };
        same("released", ours, theirs)
    }

    fn plan(&mut self, step: &Value) -> Result<(), String> {
        let ours = self.pool.plan(self.goal, 0, self.slots);
        let job = &step["job"];
        let theirs = match job["kind"].as_str() {
            None => None,
            Some("create") => Some(Step::Create(number(&job["count"]) as u32)),
            Some("delete") => Some(Step::GiveBack(cidrs(&job["groups"]))),
            Some("resync") => Some(Step::List),
            Some(other) => panic!("unknown job {other}"),
        };
        same("job", &ours, &theirs)?;
        match &ours {
            Some(Step::Create(count)) => self.pool.creating(*count),
            Some(Step::GiveBack(blocks)) => self.pool.giving_back(blocks),
            Some(Step::List) | None => {}
        }
        if let Some(step) = ours {
            self.calls.insert(number(&job["n"]), step);
        }
        Ok(())
    }

    fn done(&mut self, step: &Value, now: u64) {
        let groups = cidrs(&step["groups"]);
        let failed = step["ok"] == false;
        match self
            .calls
            .remove(&number(&step["n"]))
            .expect("the call was begun")
        {
            Step::Create(asked) => {
                self.pool.created(asked, &groups, now, &mut self.absent);
                if step["prefix_available"] == false {
                    self.pool.not_created(0, Failure::NoPrefix);
                } else if failed {
                    self.pool.not_created(0, Failure::Other);
                }
                (self.prefix_known, self.prefix_comparable) = (true, true);
            }
            Step::GiveBack(blocks) => {
                let gone: Vec<_> = blocks
                    .into_iter()
                    .filter(|block| !groups.contains(block))
                    .collect();
                if failed {
                    self.pool.require_listing();
                    self.pool.kept(&groups, now, &mut self.absent);
                    self.prefix_comparable = false;
                } else {
                    (self.prefix_known, self.prefix_comparable) = (true, true);
                }
                if !gone.is_empty() {
                    self.pool.given_back(&gone);
                }
            }
            Step::List if step["failed"] == true => {}
            Step::List if self.pool.must_list() => {
                self.pool
                    .listed(&cidrs(&step["listed"]), now, &mut self.absent)
            }
            Step::List => {}
        }
    }

    /// Whether the step is an outdated listing that names addresses that are being given back. VRC then has each of them
    /// twice, as deleting and as warm, and gives them to pods: a defect that `compare_until` does not know.
    fn counts_twice(&self, step: &Value) -> bool {
        let listed = cidrs(&step["listed"]);
        let giving_back =
            |(block, giving_back): (Cidr, bool)| giving_back && listed.contains(&block);
        self.pool.must_list() && self.pool.blocks().any(giving_back)
    }

    fn state(&self, then: &Value) -> Result<(), String> {
        let counts = self.pool.counts();
        let mut ours = json!({
            "used": counts.used, "warm": counts.warm, "cooling": counts.cooling, "creating": counts.creating,
            "deleting": counts.deleting, "resync": self.pool.must_list(),
        });
        if self.kind == Kind::Prefix {
            ours["free_prefixes"] = json!(counts.free_prefixes);
            ours["prefix_available"] = then["prefix_available"].clone();
            if self.prefix_comparable {
                ours["prefix_available"] = json!(!self.pool.no_prefix());
            }
        }
        same("state", &ours, then)
    }
}

fn same<T: PartialEq + Debug>(what: &str, ours: T, theirs: T) -> Result<(), String> {
    if ours == theirs {
        Ok(())
    } else {
        Err(format!("{what}: ours {ours:?}, theirs {theirs:?}"))
    }
}

#[test]
fn pool_vectors() {
    let path = std::env::var("POOL_VECTORS").unwrap_or_else(|_| testdata("pool-vectors.jsonl.gz"));
    let sequences = lines(&path);
    let (mut steps, mut cut_short, mut failures) = (0, 0, Vec::new());
    for sequence in &sequences {
        let mut replay = Replay::new(sequence);
        let compared = number(&sequence["compare_until"]) as usize;
        let all = sequence["steps"].as_array().expect("steps");
        for (at, step) in all.iter().take(compared).enumerate() {
            if replay.counts_twice(step) {
                cut_short += 1;
                break;
            }
            if let Err(difference) = replay.step(step) {
                failures.push(format!(
                    "{} step {at}: {difference}\n  {step}",
                    sequence["id"]
                ));
                break;
            }
            steps += 1;
        }
    }
    let agree = sequences.len() - failures.len();
    println!(
        "{agree} of {} sequences ({steps} steps compared, {cut_short} cut short)",
        sequences.len()
    );
    failures.truncate(8);
    assert!(!sequences.is_empty(), "the file holds sequences");
    assert_eq!(
        agree,
        sequences.len(),
        "these differ:\n{}",
        failures.join("\n")
    );
}
