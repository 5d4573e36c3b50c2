//! Rules of an interface by example: restarts, switches of the mode, retries, wake-ups.

use mullion_engine::ip::{
    Answer, Call, CallPriority, Event, Failure, Interface, Kind, Listing, RestartState, Targets,
};

use crate::defects::{Caller, cidrs, pod};

#[test]
fn a_released_address_rests_for_thirty_seconds() {
    let mut caller = Caller::new(1, Kind::Address, [1, 0, 0]);
    caller.assigns();
    caller.created(["10.0.0.5/20"]);
    caller.given("a");
    caller.event(Event::PodGone(pod("a")));
    assert_eq!(caller.given("b"), None);
    assert_eq!(caller.interface.wake_at(), Some(30_000));
    caller.now = 29_999;
    assert_eq!(caller.event(Event::Wake), []);
    caller.now = 30_000;
    let address = cidrs(["10.0.0.5/20"])[0];
    assert_eq!(
        caller.event(Event::Wake),
        [Answer::Give {
            pod: pod("b"),
            address
        }]
    );
    assert_eq!(caller.interface.wake_at(), None);
}

#[test]
fn after_a_restart_an_address_rests_unless_a_pod_has_it_or_it_is_known_to_have_been_warm() {
    let listing = Listing {
        addresses: cidrs(["10.0.0.5/20", "10.0.0.6/20", "10.0.0.7/20"]),
        prefixes: vec![],
    };
    let pods = [(pod("a"), cidrs(["10.0.0.5/20"])[0])];
    let warm = [cidrs(["10.0.0.6/20"])[0].ip];
    let state = RestartState {
        listing: &listing,
        pods: &pods,
        warm: &warm,
        giving_back: &[],
    };
    let mut caller = Caller::new(3, Kind::Address, [1, 0, 0]);
    caller.interface = Interface::restore(3, Kind::Address, Targets::ADDRESSES, state, 0);
    let counts = caller.interface.counts();
    assert_eq!((counts.used, counts.warm, counts.cooling), (1, 1, 1));
    assert_eq!(caller.given("b").as_deref(), Some("10.0.0.6/20"));
    assert_eq!(caller.given("c"), None);
    assert_eq!(
        caller.interface.wake_at(),
        Some(20_000),
        "what was found is confirmed before it is given out"
    );
    caller.now = 20_000;
    assert_eq!(caller.call(), Some(Call::List));
    caller.event(Event::Listed(Listing {
        addresses: cidrs(["10.0.0.5/20", "10.0.0.6/20"]),
        prefixes: vec![],
    }));
    caller.now = 40_000;
    assert_eq!(
        caller.event(Event::Wake),
        [],
        "the third one was on its way back when the controller died"
    );
}

#[test]
fn after_a_restart_a_block_that_was_being_given_back_goes_to_no_pod_before_that_has_settled() {
    let mut caller = Caller::new(3, Kind::Address, [1, 0, 0]);
    caller.assigns();
    caller.created(["10.0.0.5/20"]);
    caller.event(Event::Configured(Kind::Prefix, Targets::PREFIXES));
    let block = cidrs(["10.0.0.5/20"]);
    while let Some(call) = caller.call() {
        assert_ne!(call, Call::List);
    }
    let giving_back: Vec<_> = caller.interface.giving_back().collect();
    assert_eq!(giving_back, [(Kind::Address, block[0].ip)]);
    let state = RestartState {
        listing: &Listing::default(),
        pods: &[],
        warm: &[],
        giving_back: &giving_back,
    };
    caller.interface = Interface::restore(3, Kind::Address, Targets::ADDRESSES, state, 0);
    let still: Vec<_> = caller.interface.giving_back().collect();
    assert_eq!(still, giving_back, "the next restart has to know it too");
    assert_eq!(caller.assigns(), 3);
    caller.now = 30_000;
    caller.created(["10.0.0.5/20", "10.0.0.6/20", "10.0.0.7/20"]);
    assert_eq!(caller.given("a").as_deref(), Some("10.0.0.6/20"));
    assert_eq!(caller.given("b").as_deref(), Some("10.0.0.7/20"));
    assert_eq!(
        caller.given("c"),
        None,
        "the call of before may have taken 10.0.0.5 away since it was assigned"
    );
}

#[test]
fn after_a_restart_no_pod_gets_an_address_that_one_listing_shows_and_the_next_does_not() {
    let listing = |addresses| Listing {
        addresses,
        prefixes: vec![],
    };
    let there = listing(cidrs(["10.0.0.5/20"]));
    let state = RestartState {
        listing: &there,
        pods: &[],
        warm: &[],
        giving_back: &[],
    };
    let mut caller = Caller::new(3, Kind::Address, [1, 0, 0]);
    caller.interface = Interface::restore(1, Kind::Address, Targets::ADDRESSES, state, 0);
    caller.given("a");
    caller.now = 10_000;
    caller.event(Event::Recheck);
    assert_eq!(caller.call(), Some(Call::List));
    caller.event(Event::Listed(listing(vec![])));
    caller.event(Event::Recheck);
    assert_eq!(caller.call(), Some(Call::List));
    caller.event(Event::Listed(listing(cidrs(["10.0.0.6/20"]))));
    caller.now = 29_000;
    assert_eq!(caller.call(), Some(Call::List));
    caller.now = 60_000;
    let answers = caller.event(Event::Listed(listing(vec![])));
    let gives = |answer: &Answer| matches!(answer, Answer::Give { .. });
    assert!(!answers.iter().any(gives), "{answers:?}");
}

#[test]
fn a_block_whose_return_ended_while_it_was_assigned_goes_to_no_pod_before_that_has_settled() {
    let mut caller = Caller::new(3, Kind::Address, [1, 0, 0]);
    assert_eq!(caller.assigns(), 1);
    caller.created(["10.0.0.5/20"]);
    caller.event(Event::Configured(Kind::Prefix, Targets::PREFIXES));
    while let Some(call) = caller.call() {
        if let Call::Assign { .. } = call {
            caller.event(Event::NotCreated(Failure::NoPrefix));
        }
    }
    caller.event(Event::Configured(Kind::Address, Targets::ADDRESSES));
    assert_eq!(caller.assigns(), 2);
    caller.event(Event::GivenBack);
    caller.created(["10.0.0.5/20", "10.0.0.6/20"]);
    assert_eq!(caller.given("a").as_deref(), Some("10.0.0.6/20"));
    assert_eq!(
        caller.given("b"),
        None,
        "which of the two calls took effect first is not known"
    );
}

#[test]
fn after_a_switch_both_kinds_share_the_slots_and_the_old_one_drains() {
    let mut caller = Caller::new(3, Kind::Address, [2, 3, 0]);
    assert_eq!(caller.assigns(), 3);
    caller.created(["10.0.0.5/20", "10.0.0.6/20", "10.0.0.7/20"]);
    caller.given("a");
    caller.event(Event::Configured(Kind::Prefix, Targets::PREFIXES));
    assert_eq!(
        caller.interface.capacity(),
        1 + 2 * 16,
        "one address in use, and two slots for prefixes"
    );
    let blocks = cidrs(["10.0.0.6/20", "10.0.0.7/20"]);
    assert_eq!(
        caller.call(),
        Some(Call::GiveBack {
            kind: Kind::Address,
            blocks
        })
    );
    assert_eq!(caller.call(), None, "no slot is free before that is done");
    caller.event(Event::GivenBack);
    assert_eq!(
        caller.call(),
        Some(Call::Assign {
            kind: Kind::Prefix,
            count: 1
        })
    );
    caller.created(["10.0.0.16/28"]);
    assert_eq!(caller.given("b").as_deref(), Some("10.0.0.16/32"));
    caller.event(Event::PodGone(pod("a")));
    caller.now = 30_000;
    caller.event(Event::Wake);
    assert_eq!(
        caller.call(),
        Some(Call::GiveBack {
            kind: Kind::Address,
            blocks: cidrs(["10.0.0.5/20"])
        })
    );
}

#[test]
fn a_call_is_as_large_as_the_demand_when_its_turn_comes_and_one_of_a_kind_is_under_way() {
    let mut caller = Caller::new(9, Kind::Address, [1, 0, 0]);
    assert_eq!(caller.interface.wants_call(0), Some(CallPriority::Upkeep));
    for name in ["a", "b", "c", "d"] {
        caller.given(name);
    }
    assert_eq!(caller.interface.wants_call(0), Some(CallPriority::Pods(4)));
    assert_eq!(caller.assigns(), 4);
    caller.given("e");
    assert_eq!(caller.call(), None);
    assert_eq!(caller.interface.wants_call(0), None);
}

#[test]
fn what_the_subnet_still_has_is_found_by_asking_for_less() {
    let mut caller = Caller::new(9, Kind::Address, [1, 0, 0]);
    for name in ["a", "b", "c", "d", "e"] {
        caller.given(name);
    }
    assert_eq!(caller.assigns(), 5);
    caller.event(Event::NotCreated(Failure::NoAddress));
    assert_eq!(caller.assigns(), 2);
    caller.created(["10.0.0.5/20", "10.0.0.6/20"]);
    assert_eq!(caller.assigns(), 3);
    caller.event(Event::NotCreated(Failure::NoAddress));
    assert_eq!(caller.assigns(), 1);
    caller.event(Event::NotCreated(Failure::NoAddress));
    for seconds in [2, 4, 8, 16, 32, 64, 120, 120] {
        assert_eq!(caller.call(), None);
        assert_eq!(
            caller.interface.wake_at(),
            Some(caller.now + seconds * 1_000)
        );
        caller.now += seconds * 1_000;
        assert_eq!(caller.assigns(), 1);
        caller.event(Event::NotCreated(Failure::NoAddress));
    }
}

#[test]
fn after_a_call_without_an_answer_the_interface_is_listed_at_once_and_when_it_has_settled() {
    let mut caller = Caller::new(3, Kind::Address, [1, 0, 0]);
    caller.assigns();
    caller.event(Event::NotCreated(Failure::NoAnswer));
    assert_eq!(caller.call(), Some(Call::List));
    assert_eq!(
        caller.call(),
        None,
        "nothing begins while a listing is under way"
    );
    let listing = Listing {
        addresses: cidrs(["10.0.0.5/20"]),
        prefixes: vec![],
    };
    caller.event(Event::Listed(listing.clone()));
    assert_eq!(
        caller.given("a").as_deref(),
        Some("10.0.0.5/20"),
        "EC2 had done it"
    );
    caller.now = 20_000;
    caller.event(Event::PodGone(pod("a")));
    assert_eq!(caller.call(), Some(Call::List));
}

#[test]
fn a_listing_that_contradicts_a_recent_change_is_repeated_and_does_not_undo_the_change() {
    let mut caller = Caller::new(3, Kind::Address, [2, 0, 0]);
    caller.assigns();
    caller.created(["10.0.0.5/20", "10.0.0.6/20"]);
    caller.event(Event::Configured(
        Kind::Address,
        Targets {
            warm_ip: 1,
            min_ip: 0,
            warm_prefix: 0,
        },
    ));
    assert!(matches!(caller.call(), Some(Call::GiveBack { .. })));
    caller.event(Event::GivenBack);
    caller.now = 1_000;
    caller.event(Event::Recheck);
    assert_eq!(caller.call(), Some(Call::List));
    caller.event(Event::Listed(Listing {
        addresses: cidrs(["10.0.0.5/20"]),
        prefixes: vec![],
    }));
    assert_eq!(
        caller.given("a").as_deref(),
        Some("10.0.0.6/20"),
        "10.0.0.5 was given back, 10.0.0.6 assigned"
    );
    assert_eq!(
        caller.interface.wake_at(),
        Some(0),
        "the next address is wanted at once"
    );
    assert_eq!(caller.assigns(), 1);
    caller.created(["10.0.0.7/20"]);
    assert_eq!(caller.interface.wake_at(), Some(20_000));
    caller.now = 21_001;
    assert_eq!(caller.call(), Some(Call::List));
    caller.event(Event::Listed(Listing {
        addresses: cidrs(["10.0.0.6/20", "10.0.0.7/20"]),
        prefixes: vec![],
    }));
    assert_eq!(caller.interface.wake_at(), None);
}

#[test]
fn a_pod_whose_annotation_another_controller_wrote_keeps_its_address() {
    let mut caller = Caller::new(2, Kind::Address, [2, 0, 0]);
    caller.assigns();
    caller.created(["10.0.0.5/20", "10.0.0.6/20"]);
    caller.event(Event::PodHolds(pod("a"), cidrs(["10.0.0.5/20"])[0]));
    assert_eq!(caller.given("b").as_deref(), Some("10.0.0.6/20"));
    assert_eq!(caller.given("a").as_deref(), Some("10.0.0.5/20"));
}

#[test]
fn a_step_back_of_the_clock_stretches_no_rest() {
    let mut caller = Caller::new(1, Kind::Address, [1, 0, 0]);
    caller.now = 100_000;
    caller.assigns();
    caller.created(["10.0.0.5/20"]);
    caller.given("a");
    caller.event(Event::PodGone(pod("a")));
    caller.now = 40_000;
    assert_eq!(caller.given("b"), None);
    assert_eq!(caller.interface.wake_at(), Some(70_000));
    caller.now = 70_000;
    assert_eq!(caller.event(Event::Wake).len(), 1);
}
