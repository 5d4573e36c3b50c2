//! The defects of upstream that were found while its answers were recorded, each as the rule that holds here instead.

use mullion_engine::ip::{
    Absent, Answer, Call, Cidr, Event, Failure, Goal, Interface, Kind, Listing, PodUid, Pool,
    RestartState, Step, Targets, WaitReason,
};

pub(crate) fn pod(name: &str) -> PodUid {
    PodUid::from(name)
}

pub(crate) fn cidrs<const N: usize>(texts: [&str; N]) -> Vec<Cidr> {
    texts
        .map(|text| text.parse().expect("an address with its mask"))
        .to_vec()
}

/// An interface with its caller: events go in, answers and calls come out as texts.
pub(crate) struct Caller {
    pub(crate) interface: Interface,
    pub(crate) now: u64,
}

impl Caller {
    pub(crate) fn new(slots: u32, kind: Kind, [warm_ip, min_ip, warm_prefix]: [i64; 3]) -> Self {
        let targets = Targets {
            warm_ip,
            min_ip,
            warm_prefix,
        };
        Caller {
            interface: Interface::new(slots, kind, targets),
            now: 0,
        }
    }

    pub(crate) fn event(&mut self, event: Event) -> Vec<Answer> {
        let mut answers = Vec::new();
        self.interface.handle(event, self.now, &mut answers);
        answers
    }

    /// The address that the pod gets at once.
    pub(crate) fn given(&mut self, name: &str) -> Option<String> {
        self.event(Event::PodNeeds(pod(name)))
            .into_iter()
            .find_map(|answer| match answer {
                Answer::Give { pod: to, address } if to == pod(name) => Some(address.to_string()),
                _ => None,
            })
    }

    pub(crate) fn call(&mut self) -> Option<Call> {
        self.interface.next_call(self.now)
    }

    /// Begins the one call that is wanted: an assignment of so many blocks.
    pub(crate) fn assigns(&mut self) -> u32 {
        match self.call() {
            Some(Call::Assign { count, .. }) => count,
            other => panic!("{other:?} is no assignment"),
        }
    }

    pub(crate) fn created<const N: usize>(&mut self, texts: [&str; N]) -> Vec<Answer> {
        self.event(Event::Created(cidrs(texts)))
    }
}

fn waits(name: &str, why: WaitReason) -> Vec<Answer> {
    vec![Answer::Wait {
        pod: pod(name),
        why,
    }]
}

fn gives(name: &str, address: &str) -> Answer {
    Answer::Give {
        pod: pod(name),
        address: cidrs([address])[0],
    }
}

#[test]
fn a_pod_that_waits_is_demand_even_if_no_target_asks_for_an_address() {
    let mut caller = Caller::new(9, Kind::Address, [0, 1, 0]);
    assert_eq!(caller.assigns(), 1);
    caller.created(["10.0.0.5/20"]);
    assert_eq!(caller.given("a").as_deref(), Some("10.0.0.5/20"));
    assert_eq!(
        caller.call(),
        None,
        "the minimum is met and no address is to be warm"
    );
    assert_eq!(
        caller.event(Event::PodNeeds(pod("b"))),
        waits("b", WaitReason::Empty)
    );
    caller.event(Event::PodNeeds(pod("c")));
    assert_eq!(caller.assigns(), 2);
    let answers = caller.created(["10.0.0.6/20", "10.0.0.7/20"]);
    assert_eq!(
        answers,
        [gives("b", "10.0.0.6/20"), gives("c", "10.0.0.7/20")]
    );
}

#[test]
fn a_pod_does_not_wait_for_cooling_addresses_while_a_slot_is_free() {
    let mut caller = Caller::new(4, Kind::Prefix, [1, 1, 0]);
    assert_eq!(caller.assigns(), 1);
    caller.created(["10.0.0.16/28"]);
    for name in 0..15 {
        assert!(caller.given(&format!("old{name}")).is_some());
    }
    for name in 0..15 {
        caller.event(Event::PodGone(pod(&format!("old{name}"))));
    }
    assert_eq!(caller.given("a").as_deref(), Some("10.0.0.31/32"));
    assert_eq!(
        caller.event(Event::PodNeeds(pod("b"))),
        waits("b", WaitReason::Empty)
    );
    assert_eq!(
        caller.assigns(),
        1,
        "fifteen addresses cool down, and the pod does not wait for them"
    );
    assert_eq!(
        caller.created(["10.0.0.48/28"]),
        [gives("b", "10.0.0.48/32")]
    );
}

#[test]
fn an_address_that_could_not_be_given_back_keeps_its_mask_and_is_one_address() {
    for failure in [Failure::Throttled, Failure::Other] {
        let mut caller = Caller::new(3, Kind::Address, [2, 0, 0]);
        assert_eq!(caller.assigns(), 2);
        caller.created(["10.0.0.5/20", "10.0.0.6/20"]);
        caller.event(Event::Configured(
            Kind::Address,
            Targets {
                warm_ip: 1,
                min_ip: 0,
                warm_prefix: 0,
            },
        ));
        let blocks = cidrs(["10.0.0.5/20"]);
        assert_eq!(
            caller.call(),
            Some(Call::GiveBack {
                kind: Kind::Address,
                blocks
            })
        );
        caller.event(Event::NotGivenBack(failure));
        if failure == Failure::Other {
            assert_eq!(
                caller.given("early").as_deref(),
                Some("10.0.0.6/20"),
                "the doubtful address is not given"
            );
            assert_eq!(caller.call(), Some(Call::List));
            let addresses = cidrs(["10.0.0.5/20", "10.0.0.6/20"]);
            caller.event(Event::Listed(Listing {
                addresses,
                prefixes: vec![],
            }));
            caller.event(Event::PodGone(pod("early")));
        }
        assert_eq!(caller.given("a").as_deref(), Some("10.0.0.5/20"));
        assert_ne!(
            caller.given("b").as_deref(),
            Some("10.0.0.5/20"),
            "no second pod gets it"
        );
        assert_eq!(caller.interface.counts().total(), 2, "it is there once");
    }
}

#[test]
fn an_address_that_ec2_names_with_another_mask_is_the_same_address() {
    let (mut pool, mut absent) = (Pool::new(Kind::Address), Absent::default());
    pool.created(0, &cidrs(["10.0.0.5/20"]), 0, &mut absent);
    pool.require_listing();
    pool.listed(&cidrs(["10.0.0.5/32", "10.0.0.5/20"]), 0, &mut absent);
    assert_eq!(pool.counts().total(), 1);
    assert_eq!(
        pool.take(&pod("a"), 9, 0)
            .map(|address| address.to_string()),
        Ok("10.0.0.5/20".into())
    );
}

#[test]
fn a_pool_never_holds_more_than_the_slots_and_never_asks_for_none_or_less() {
    let (mut pool, mut absent) = (Pool::new(Kind::Address), Absent::default());
    let goal = Goal::Keep(Targets {
        warm_ip: 9,
        min_ip: 9,
        warm_prefix: 0,
    });
    pool.created(
        0,
        &cidrs(["10.0.0.5/20", "10.0.0.6/20", "10.0.0.7/20"]),
        0,
        &mut absent,
    );
    assert_eq!(pool.plan(goal, 9, 4), Some(Step::Create(1)));
    for capacity in 0..=3 {
        assert_eq!(pool.plan(goal, 9, capacity), None, "{capacity} slots");
    }
}

#[test]
fn a_used_address_that_ec2_has_no_more_is_lost_and_no_other_pods_while_its_pod_lives() {
    let mut caller = Caller::new(2, Kind::Address, [1, 0, 0]);
    assert_eq!(caller.assigns(), 1);
    caller.created(["10.0.0.5/20"]);
    caller.given("a");
    assert_eq!(caller.assigns(), 1);
    caller.created(["10.0.0.6/20"]);
    caller.now = 60_000;
    caller.event(Event::Recheck);
    assert_eq!(caller.call(), Some(Call::List));
    let listing = Listing {
        addresses: cidrs(["10.0.0.6/20"]),
        prefixes: vec![],
    };
    let lost = Answer::Lost {
        pod: pod("a"),
        address: cidrs(["10.0.0.5/20"])[0],
    };
    assert_eq!(caller.event(Event::Listed(listing)), [lost]);
    assert_eq!(caller.interface.counts().used, 0);

    assert_eq!(caller.given("b").as_deref(), Some("10.0.0.6/20"));
    assert_eq!(caller.assigns(), 1);
    caller.created(["10.0.0.5/20"]);
    assert_eq!(
        caller.given("c"),
        None,
        "EC2 assigned the address again, and it is still a's"
    );
    assert_eq!(caller.interface.counts().used, 2);
    caller.event(Event::PodGone(pod("a")));
    caller.now += 29_999;
    assert!(
        caller.event(Event::Wake).is_empty(),
        "it rests as any other"
    );
    caller.now += 1;
    assert_eq!(caller.event(Event::Wake), [gives("c", "10.0.0.5/20")]);
}

#[test]
fn a_pod_that_comes_before_the_first_prefix_hears_that_it_is_coming() {
    let mut caller = Caller::new(4, Kind::Prefix, [1, 3, 0]);
    assert_eq!(
        caller.event(Event::PodNeeds(pod("a"))),
        waits("a", WaitReason::Empty)
    );
    assert_eq!(WaitReason::Empty.retry_ms(), Some(600));
    let state = RestartState {
        listing: &Listing::default(),
        pods: &[],
        warm: &[],
        giving_back: &[],
    };
    caller.interface = Interface::restore(4, Kind::Prefix, Targets::PREFIXES, state, 0);
    assert_eq!(
        caller.event(Event::PodNeeds(pod("a"))),
        waits("a", WaitReason::Empty),
        "after a restart too"
    );
}

#[test]
fn a_pod_hears_that_the_subnet_has_no_prefix_when_the_prefixes_are_used_up() {
    let mut caller = Caller::new(4, Kind::Prefix, [1, 1, 0]);
    assert_eq!(caller.assigns(), 1);
    caller.created(["10.0.0.16/28"]);
    for name in 0..16 {
        assert!(caller.given(&format!("old{name}")).is_some());
    }
    assert_eq!(caller.assigns(), 1);
    caller.event(Event::NotCreated(Failure::NoPrefix));
    assert_eq!(
        caller.event(Event::PodNeeds(pod("a"))),
        waits("a", WaitReason::NoPrefix)
    );
    assert_eq!(WaitReason::NoPrefix.retry_ms(), Some(120_000));
    assert_eq!(
        caller.call(),
        None,
        "a full subnet is not asked every 600 ms"
    );
    assert_eq!(caller.interface.wake_at(), Some(2_000));
    caller.event(Event::Room);
    assert_eq!(
        caller.assigns(),
        1,
        "room in the subnet ends the wait at once"
    );
}

#[test]
fn a_failed_give_back_does_not_say_that_the_subnet_has_prefixes() {
    let (mut pool, mut absent) = (Pool::new(Kind::Prefix), Absent::default());
    pool.created(0, &cidrs(["10.0.0.16/28", "10.0.0.32/28"]), 0, &mut absent);
    pool.not_created(0, Failure::NoPrefix);
    let blocks = cidrs(["10.0.0.16/28"]);
    pool.giving_back(&blocks);
    pool.kept(&blocks, 0, &mut absent);
    assert!(pool.no_prefix());
    pool.giving_back(&blocks);
    pool.given_back(&blocks);
    assert!(!pool.no_prefix(), "one given back does");
}
