//! What the ConfigMap of the VPC resource controller says of addresses decides which Windows nodes are bought, and how many.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::{Value, json};

use crate::whole::Whole;

const PROVISIONER: &str = include_str!("../../../api/testdata/karpenter-provisioner-2022.yaml");
const ADDRESSES: &str = "vpc.amazonaws.com/PrivateIPv4Address";

/// Addresses of each launched claim, by its name.
fn addresses(whole: &Whole) -> BTreeMap<String, i64> {
    let of = |claim: &mullion_api::karpenter::NodeClaim| {
        let status = claim.status.as_ref()?;
        let shown = status.capacity.text(ADDRESSES).unwrap_or("0");
        (!status.provider_id.is_empty()).then(|| shown.parse().expect("a number"))
    };
    let claims = whole.claims();
    claims
        .iter()
        .filter_map(|claim| Some((claim.name_any(), of(claim)?)))
        .collect()
}

async fn switch(whole: &Whole, ipam: bool, prefixes: bool) -> ConfigMap {
    let client = whole.context.client.clone();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let data = json!({ "data": {
        "enable-windows-ipam": ipam.to_string(),
        "enable-windows-prefix-delegation": prefixes.to_string(),
    }});
    if maps
        .get_opt("amazon-vpc-cni")
        .await
        .expect("an answer")
        .is_some()
    {
        whole.patch(maps.clone(), "amazon-vpc-cni", data).await;
    } else {
        let namespaces: Api<Namespace> = Api::all(client);
        let home = json!({ "metadata": { "name": "kube-system" } });
        let home: Namespace = serde_json::from_value(home).expect("a namespace");
        // It may be there already.
        let _ = namespaces.create(&PostParams::default(), &home).await;
        let mut map: Value = data;
        map["metadata"] = json!({ "name": "amazon-vpc-cni" });
        let map: ConfigMap = serde_json::from_value(map).expect("a ConfigMap");
        maps.create(&PostParams::default(), &map)
            .await
            .expect("it is accepted");
    }
    maps.get("amazon-vpc-cni").await.expect("it is there")
}

#[tokio::test(start_paused = true)]
async fn a_switch_of_the_config_map_changes_what_is_bought_next() {
    let whole = Whole::start().await;
    switch(&whole, true, true).await;
    whole.apply(PROVISIONER).await;
    whole.windows_deployment("many", "10.0.20348", 60).await;
    let first = whole
        .until("a node is bought for the sixty pods", || {
            Some(addresses(&whole)).filter(|bought| !bought.is_empty())
        })
        .await;
    assert_eq!(first.len(), 1, "{first:?}");
    let with_prefixes = *first.values().next().expect("one");
    assert!(with_prefixes >= 60 && with_prefixes % 16 == 0, "{first:?}");

    switch(&whole, true, false).await;
    // The first node still has prefixes, so more pods are asked for than it has room for.
    whole.windows_deployment("more", "10.0.20348", 120).await;
    let later = whole
        .until("nodes are bought for the others", || {
            let mut bought = addresses(&whole);
            bought.retain(|name, _| !first.contains_key(name));
            (bought.values().sum::<i64>() + 110 >= 180).then_some(bought)
        })
        .await;
    assert!(later.len() > 1, "{later:?}");
    assert!(later.values().all(|count| *count < 50), "{later:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_bought_for_pods_that_ask_for_addresses_while_there_are_none() {
    let whole = Whole::start().await;
    switch(&whole, false, false).await;
    whole.apply(PROVISIONER).await;
    whole.windows_deployment("iis", "10.0.20348", 1).await;
    whole.pass(120).await;
    assert!(whole.claims().is_empty());
    // The change of the ConfigMap itself is what makes the provisioner look again.
    switch(&whole, true, false).await;
    whole
        .until("a node is bought", || {
            (!addresses(&whole).is_empty()).then_some(())
        })
        .await;
}
