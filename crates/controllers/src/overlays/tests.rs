use mullion_api::{
    karpenter::{Operator, Requirement},
    labels,
};
use serde_json::{Value, json};

use super::*;
use crate::provisioner::market::tests::market;

fn pool(name: &str, team: &str) -> NodePool {
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "template": {
            "metadata": { "labels": { "team": team } },
            "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "c" },
                "requirements": []
            }
        }}
    }))
    .expect("a pool")
}

/// Returns an overlay for types, with further requirements and fields.
fn overlay(name: &str, types: &[&str], more: &[Requirement], fields: Value) -> NodeOverlay {
    let mut requirements = vec![json!({
        "key": "node.kubernetes.io/instance-type", "operator": "In", "values": types
    })];
    requirements.extend(more.iter().map(|own| json!(own)));
    let mut spec = fields;
    spec["requirements"] = json!(requirements);
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).expect("one")
}

fn judged(market: &Market, all: &[NodeOverlay]) -> Judgement {
    let (a, b) = (pool("a", "one"), pool("b", "two"));
    judge(all, &[(&a, market), (&b, market)])
}

/// Dollars of all offerings of a type, by zone and capacity type.
fn prices(market: &Market, name: &str) -> Vec<String> {
    let wanted = [Requirement::is(labels::INSTANCE_TYPE, name)];
    let machines = market.machines(&wanted);
    let offerings = machines.iter().flat_map(|own| &own.offerings);
    let mut told: Vec<String> = offerings
        .map(|own| {
            let zone = own.zone.trim_start_matches("us-west-2");
            let price = own.price_micro_usd as f64 / 1e6;
            format!("{zone} {} {price}", own.capacity_type)
        })
        .collect();
    told.sort();
    told
}

#[tokio::test(start_paused = true)]
async fn the_price_changes_where_all_requirements_hold_and_nowhere_else() {
    let market = market("AL2023", 33).await;
    let before = [
        "a on-demand 0.096",
        "a spot 0.0336",
        "b on-demand 0.096",
        "b spot 0.0336",
    ];
    assert_eq!(prices(&market, "m5.large"), before);
    let of = |more: &[Requirement], team: &str| {
        let fields = json!({ "price": "0.01" });
        let judgement = judged(&market, &[overlay("o", &["m5.large"], more, fields)]);
        let overlaid = market
            .clone()
            .with_overlays(&pool("a", team), &judgement.overlays);
        assert_eq!(prices(&overlaid, "m5.xlarge"), prices(&market, "m5.xlarge"));
        prices(&overlaid, "m5.large")
    };
    let all = [
        "a on-demand 0.01",
        "a spot 0.01",
        "b on-demand 0.01",
        "b spot 0.01",
    ];
    assert_eq!(of(&[], "one"), all);
    let spot = Requirement::is(labels::CAPACITY_TYPE, "spot");
    let zone = Requirement::new(labels::BETA_ZONE, Operator::NotIn, ["us-west-2a"]);
    assert_eq!(
        of(&[spot, zone], "one"),
        [
            "a on-demand 0.096",
            "a spot 0.0336",
            "b on-demand 0.096",
            "b spot 0.01"
        ]
    );
    let team = Requirement::is("team", "one");
    assert_eq!(of(std::slice::from_ref(&team), "one"), all);
    assert_eq!(of(&[team], "two"), before);
    assert_eq!(of(&[Requirement::is(labels::NODEPOOL, "b")], "one"), before);
    // A label that nothing says is not there.
    assert_eq!(of(&[Requirement::is("unknown", "x")], "one"), before);
    let absent = Requirement::new("unknown", Operator::DoesNotExist, [""; 0]);
    assert_eq!(of(&[absent], "one"), all);
    let cpus = Requirement::new(labels::INSTANCE_CPU, Operator::Gte, ["4"]);
    assert_eq!(of(&[cpus], "one"), before);
}

#[tokio::test(start_paused = true)]
async fn greater_weight_counts_and_resources_of_all_are_put_together() {
    let market = market("AL2023", 33).await;
    let spot = [Requirement::is(labels::CAPACITY_TYPE, "spot")];
    let all = [
        overlay(
            "low",
            &["m5.large"],
            &[],
            json!({
                "weight": 5, "priceAdjustment": "-10%",
                "capacity": { "example.com/card": "1", "hugepages-2Mi": "1Gi" }
            }),
        ),
        overlay(
            "high",
            &["m5.large"],
            &spot,
            json!({ "weight": 10, "priceAdjustment": "+100%", "capacity": { "example.com/card": "4" } }),
        ),
    ];
    let judgement = judged(&market, &all);
    assert!(
        judgement
            .verdicts
            .values()
            .all(|own| *own == Verdict::Valid)
    );
    let names: Vec<_> = judgement.overlays.iter().map(|own| &*own.name).collect();
    assert_eq!(names, ["high", "low"]);
    let overlaid = market
        .clone()
        .with_overlays(&pool("a", "one"), &judgement.overlays);
    assert_eq!(
        prices(&overlaid, "m5.large"),
        [
            "a on-demand 0.0864",
            "a spot 0.0672",
            "b on-demand 0.0864",
            "b spot 0.0672"
        ]
    );
    let wanted = [Requirement::is(labels::INSTANCE_TYPE, "m5.large")];
    let (old, new) = (market.machines(&wanted), overlaid.machines(&wanted));
    for resources in [&new[0].capacity, &new[0].allocatable] {
        assert_eq!(resources["example.com/card"].value(), 4);
        assert_eq!(resources["hugepages-2Mi"].value(), 1 << 30);
    }
    // Huge pages are taken out of the memory that pods may have.
    let memory = old[0].allocatable[labels::MEMORY].value();
    assert_eq!(
        new[0].allocatable[labels::MEMORY].value(),
        memory - (1 << 30)
    );
    assert_eq!(
        new[0].capacity[labels::MEMORY],
        old[0].capacity[labels::MEMORY]
    );
    // A launch looks for room and for the cheapest as the plan did.
    let card = [(
        "example.com/card".to_owned(),
        "3".parse().expect("a quantity"),
    )]
    .into();
    assert!(market.launch_options(&wanted, &card).is_empty());
    let options = overlaid.launch_options(&wanted, &card);
    assert_eq!(options[0].to_string(), "spot m5.large in us-west-2a");
    let (priced, added) = overlaid.overlays(["m5.large"].into_iter());
    assert!(priced && added);
    assert_eq!(overlaid.overlays(["m5.xlarge"].into_iter()), (false, false));
}

#[tokio::test(start_paused = true)]
async fn of_two_of_equal_weight_that_change_the_same_the_later_name_counts() {
    let market = market("AL2023", 33).await;
    let verdict = |a: (&[&str], &[Requirement], Value), b: (&[&str], &[Requirement], Value)| {
        let all = [overlay("a", a.0, a.1, a.2), overlay("b", b.0, b.1, b.2)];
        let judgement = judged(&market, &all);
        assert_eq!(judgement.verdicts["b"], Verdict::Valid);
        judgement.verdicts["a"].clone()
    };
    let (m5, both) = (["m5.large"], ["m5.large", "m5.xlarge"]);
    let price = || json!({ "price": "0.01" });
    let share = || json!({ "priceAdjustment": "-5%" });
    let card = |name: &str| json!({ "capacity": { name: "1" } });
    let conflict = Verdict::Conflict("b".to_owned());
    assert_eq!(
        verdict((&m5, &[], price()), (&both, &[], share())),
        conflict
    );
    let x = "example.com/x";
    assert_eq!(
        verdict((&m5, &[], card(x)), (&both, &[], card(x))),
        conflict
    );
    let other = card("example.com/y");
    assert_eq!(
        verdict((&m5, &[], card(x)), (&both, &[], other)),
        Verdict::Valid
    );
    assert_eq!(
        verdict((&m5, &[], price()), (&m5, &[], card(x))),
        Verdict::Valid
    );
    let heavy = json!({ "price": "0.01", "weight": 2 });
    assert_eq!(
        verdict((&m5, &[], heavy), (&m5, &[], share())),
        Verdict::Valid
    );
    // Offerings, and for prices nothing else, are what they must have in common.
    let kind = |kind: &str| [Requirement::is(labels::CAPACITY_TYPE, kind)];
    let (spot, demand) = (kind("spot"), kind("on-demand"));
    assert_eq!(
        verdict((&m5, &spot, price()), (&m5, &demand, share())),
        Verdict::Valid
    );
    assert_eq!(
        verdict((&m5, &spot, card(x)), (&m5, &demand, card(x))),
        conflict
    );
    // Pools that the one and the other is about are different ones, or the same.
    let team = |team: &str| [Requirement::is("team", team)];
    assert_eq!(
        verdict((&m5, &team("one"), price()), (&m5, &team("two"), share())),
        Verdict::Valid
    );
    let name = [Requirement::is(labels::NODEPOOL, "b")];
    assert_eq!(
        verdict((&m5, &name, price()), (&m5, &team("two"), share())),
        conflict
    );
}

#[tokio::test(start_paused = true)]
async fn an_overlay_in_conflict_changes_nothing_for_any_pool_and_none_is_in_conflict_with_it() {
    let market = market("AL2023", 33).await;
    let all = [
        overlay("c", &["m5.large"], &[], json!({ "price": "0.01" })),
        overlay(
            "b",
            &["m5.large", "m5.xlarge"],
            &[],
            json!({ "price": "0.02" }),
        ),
        overlay("a", &["m5.xlarge"], &[], json!({ "price": "0.03" })),
    ];
    let judgement = judged(&market, &all);
    assert_eq!(judgement.verdicts["b"], Verdict::Conflict("c".to_owned()));
    assert_eq!(judgement.verdicts["a"], Verdict::Valid);
    let overlaid = market.with_overlays(&pool("b", "two"), &judgement.overlays);
    assert_eq!(prices(&overlaid, "m5.xlarge")[0], "a on-demand 0.03");
}

#[test]
fn the_status_says_what_came_of_it_in_karpenters_words() {
    let now = jiff::Timestamp::UNIX_EPOCH;
    let own = overlay(
        "o",
        &["m5.large"],
        &[],
        json!({ "price": "1", "weight": 7 }),
    );
    let told = |verdict: Option<Verdict>, before: Option<NodeOverlayStatus>| {
        let own = NodeOverlay {
            status: before,
            ..own.clone()
        };
        let status = status_of(&own, verdict.as_ref(), now);
        let told = status.conditions.iter().map(|own| {
            format!(
                "{}={} {}: {}",
                own.type_, own.status, own.reason, own.message
            )
        });
        (told.collect::<Vec<_>>(), Some(status))
    };
    let (shut, status) = told(None, None);
    let why = "spec has no effect: no price and no capacity is changed, because the feature gate NodeOverlay is off";
    assert_eq!(
        shut,
        [
            format!("FieldsIgnored=True NoEffect: {why}"),
            format!("Ready=False FeatureGateClosed: {why}")
        ]
    );
    assert!(is_shut_out(&NodeOverlay {
        status: status.clone(),
        ..own.clone()
    }));
    let (valid, status) = told(Some(Verdict::Valid), status);
    assert_eq!(
        valid,
        [
            "Ready=True Ready: ",
            "ValidationSucceeded=True ValidationSucceeded: "
        ]
    );
    let (conflict, status) = told(Some(Verdict::Conflict("p".to_owned())), status);
    assert_eq!(
        conflict,
        [
            "Ready=False UnhealthyDependents: ValidationSucceeded=False",
            "ValidationSucceeded=False Conflict: conflict with another overlay: \"p\" has the weight 7 too, and changes the same machines"
        ]
    );
    let (invalid, _) = told(Some(Verdict::Invalid("no".to_owned())), status);
    assert_eq!(
        invalid[1],
        "ValidationSucceeded=False RuntimeValidation: no"
    );
}

#[tokio::test(start_paused = true)]
async fn types_with_less_than_nothing_of_a_resource_hold_no_pod_and_the_overlay_is_valid() {
    let market = market("AL2023", 33).await;
    let all = [overlay(
        "o",
        &["m5.large"],
        &[],
        json!({ "capacity": { "example.com/card": "-1" } }),
    )];
    let judgement = judged(&market, &all);
    assert_eq!(judgement.verdicts["o"], Verdict::Valid);
    let overlaid = market.with_overlays(&pool("a", "one"), &judgement.overlays);
    let wanted = [Requirement::new(
        labels::INSTANCE_TYPE,
        Operator::In,
        ["m5.large", "m5.xlarge"],
    )];
    let machines = overlaid.machines(&wanted);
    let names: Vec<_> = machines.iter().map(|own| own.name.as_str()).collect();
    assert_eq!(names, ["m5.xlarge"]);
    let options = overlaid.launch_options(&wanted, &Default::default());
    assert!(!options.is_empty());
    assert!(options.iter().all(|own| own.instance_type == "m5.xlarge"));
}
