//! Describe calls for zones, placement groups, capacity reservations and the status checks of instances.

use std::collections::BTreeMap;

use mullion_cloud::{
    CloudProvider, Impairment, InstanceState, ReservationKind, StatusCheck, sim::zone_id,
};

use super::{Call, instances::write_state, launch_templates::time, write_tags};
use crate::{
    filter::{Filters, one},
    page::{self, Page},
    refusal::Refusal,
    xml::Xml,
};

/// DescribeAvailabilityZones.
pub(super) fn describe_zones(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let names = root.list("ZoneName");
    let ids = root.list("ZoneId");
    let filters = Filters::read(&root)?;
    root.accept(&["AllAvailabilityZones"]);
    call.complete()?;
    let region = &call.ec2().config().region;
    let all = call.ec2().zones();
    if let Some(name) = names
        .iter()
        .find(|name| !all.iter().any(|own| **own == ***name))
    {
        return Err(Refusal::value(format!(
            "Invalid availability zone: [{name}]"
        )));
    }
    if let Some(id) = ids
        .iter()
        .find(|id| !all.iter().any(|own| zone_id(own) == **id))
    {
        return Err(Refusal::value(format!(
            "Invalid availability zone-id: [{id}]"
        )));
    }
    let mut found = Vec::new();
    for zone in all {
        let id = zone_id(&zone);
        let is_named = (names.is_empty() || names.contains(&&*zone))
            && (ids.is_empty() || ids.contains(&id.as_str()));
        let find = |name: &str| match name {
            "zone-name" => one(&zone),
            "zone-id" => one(&id),
            "region-name" | "group-name" => one(region),
            "state" => one("available"),
            "zone-type" => one("availability-zone"),
            "opt-in-status" => one("opt-in-not-required"),
            _ => None,
        };
        if filters.match_all(&BTreeMap::new(), find)? && is_named {
            found.push((zone, id));
        }
    }
    Ok(call.answer(|xml| {
        xml.list("availabilityZoneInfo", found, |xml, (zone, id)| {
            xml.leaf("zoneName", zone);
            xml.leaf("zoneId", id);
            xml.leaf("zoneState", "available");
            xml.leaf("zoneType", "availability-zone");
            xml.leaf("regionName", region);
            xml.leaf("groupName", region);
            xml.leaf("networkBorderGroup", region);
            xml.leaf("optInStatus", "opt-in-not-required");
            xml.list("messageSet", [(); 0], |_, ()| ());
        });
    }))
}

/// DescribePlacementGroups: no placement group exists.
pub(super) fn describe_groups(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let names = [root.list("GroupName"), root.list("GroupId")].concat();
    Filters::read(&root)?;
    call.complete()?;
    match names.first() {
        Some(name) => Err(Refusal::new(
            "InvalidPlacementGroup.Unknown",
            format!("The Placement Group '{name}' is unknown."),
        )),
        None => Ok(call.answer(|xml| xml.list("placementGroupSet", [(); 0], |_, ()| ()))),
    }
}

/// DescribeCapacityReservations.
pub(super) fn describe_reservations(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let ids = root.list("CapacityReservationId");
    let filters = Filters::read(&root)?;
    let page = Page::read(&root, 1..=1000, 1000)?;
    call.complete()?;
    let all = call.ec2().all_reservations();
    if let Some(id) = ids
        .iter()
        .find(|id| !all.iter().any(|own| *own.reservation.id == ***id))
    {
        return Err(Refusal::new(
            "InvalidCapacityReservationId.NotFound",
            format!("The Capacity Reservation ID '{id}' does not exist"),
        ));
    }
    let mut found = Vec::new();
    for own in all {
        let is_named = ids.is_empty() || ids.contains(&&*own.reservation.id);
        let find = |name: &str| match name {
            "instance-type" => one(&own.instance_type),
            "owner-id" => one(&own.owner_id),
            "availability-zone" => one(&own.zone),
            "availability-zone-id" => one(zone_id(&own.zone)),
            "instance-match-criteria" => one(own.match_criteria.as_str()),
            "reservation-type" => one(own.reservation.kind),
            "state" => one("active"),
            "tenancy" => one("default"),
            _ => None,
        };
        if filters.match_all(&own.tags, find)? && is_named {
            found.push(own);
        }
    }
    let (found, token) = page.take(found, |own| own.reservation.id.to_string());
    let region = &call.ec2().config().region;
    Ok(call.answer(|xml| {
        xml.list("capacityReservationSet", &found, |xml, own| {
            let id = &own.reservation.id;
            xml.leaf("capacityReservationId", id);
            xml.leaf("ownerId", &own.owner_id);
            let owner = &own.owner_id;
            let arn = format!("arn:aws:ec2:{region}:{owner}:capacity-reservation/{id}");
            xml.leaf("capacityReservationArn", arn);
            xml.leaf("availabilityZone", &own.zone);
            xml.leaf("availabilityZoneId", zone_id(&own.zone));
            xml.leaf("instanceType", &own.instance_type);
            xml.leaf("tenancy", "default");
            xml.leaf("totalInstanceCount", own.total);
            xml.leaf("availableInstanceCount", own.available);
            xml.leaf("state", "active");
            match own.ends_at {
                Some(end) => {
                    xml.leaf("endDateType", "limited");
                    xml.leaf("endDate", time(end));
                }
                None => xml.leaf("endDateType", "unlimited"),
            }
            xml.leaf("instanceMatchCriteria", own.match_criteria.as_str());
            xml.leaf("reservationType", own.reservation.kind);
            if own.reservation.kind == ReservationKind::CapacityBlock {
                xml.leaf("capacityBlockId", id.replacen("cr-", "cb-", 1));
            }
            xml.leaf("interruptible", own.reservation.interruptible);
            write_tags(xml, &own.tags);
        });
        page::next(xml, token);
    }))
}

/// DescribeInstanceStatus.
pub(super) async fn describe_status(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let ids = root.list("InstanceId");
    let filters = Filters::read(&root)?;
    let page = Page::read(&root, 5..=1000, 1000)?;
    page.not_with(!ids.is_empty(), "instancesSet")?;
    let all = root.flag("IncludeAllInstances")?.unwrap_or_default();
    root.accept(&["IncludeManagedResources"]);
    call.complete()?;
    let candidates = if ids.is_empty() {
        call.seen()
    } else {
        call.named(&ids)?
    };
    let failing = call.ec2().impairments().await?;
    let mut found = Vec::new();
    for own in candidates {
        let fails = |check: StatusCheck| {
            let mut failing = failing.iter();
            failing.find(|found| found.instance == own.id && found.check == check)
        };
        let of_instance = status(own.state, fails(StatusCheck::Instance));
        let of_system = status(own.state, fails(StatusCheck::System));
        let event = fails(StatusCheck::Event).cloned();
        let find = |name: &str| match name {
            "availability-zone" => one(&own.zone),
            "instance-state-name" => one(own.state.as_str()),
            "instance-status.status" => one(of_instance.0),
            "system-status.status" => one(of_system.0),
            "event.code" => Some(event.iter().map(|_| EVENT.to_owned()).collect()),
            _ => None,
        };
        let is_wanted = all || own.state == InstanceState::Running;
        if filters.match_all(&own.tags, find)? && is_wanted {
            let checks = [of_instance, of_system].map(|(status, failed)| (status, failed.cloned()));
            found.push((own, checks, event));
        }
    }
    let (found, token) = page.take(found, |(own, ..)| own.id.to_string());
    Ok(call.answer(|xml| {
        xml.list("instanceStatusSet", &found, |xml, (own, checks, event)| {
            xml.leaf("instanceId", &own.id);
            xml.leaf("availabilityZone", &own.zone);
            xml.leaf("availabilityZoneId", &own.zone_id);
            xml.node("instanceState", |xml| write_state(xml, own.state));
            let [of_instance, of_system] = checks;
            write_check(xml, "instanceStatus", of_instance);
            write_check(xml, "systemStatus", of_system);
            xml.list("eventsSet", event, |xml, event| {
                xml.leaf(
                    "instanceEventId",
                    own.id.0.replacen("i-", "instance-event-", 1),
                );
                xml.leaf("code", EVENT);
                xml.leaf(
                    "description",
                    "The instance is running on degraded hardware",
                );
                xml.leaf("notBefore", time(event.since));
            });
        });
        page::next(xml, token);
    }))
}

/// EC2's code of the scheduled event that stops an instance.
const EVENT: &str = "instance-stop";

fn status(
    state: InstanceState,
    failed: Option<&Impairment>,
) -> (&'static str, Option<&Impairment>) {
    match (state, failed) {
        (InstanceState::Running, None) => ("ok", None),
        (InstanceState::Running, failed) => ("impaired", failed),
        (InstanceState::Pending, _) => ("initializing", None),
        _ => ("not-applicable", None),
    }
}

fn write_check(xml: &mut Xml, name: &str, (status, failed): &(&'static str, Option<Impairment>)) {
    xml.node(name, |xml| {
        xml.leaf("status", status);
        // What does not run is not checked.
        let checked = Some(()).filter(|()| *status != "not-applicable");
        xml.list("details", checked, |xml, ()| {
            xml.leaf("name", "reachability");
            let told = match *status {
                "ok" => "passed",
                "impaired" => "failed",
                other => other,
            };
            xml.leaf("status", told);
            xml.maybe("impairedSince", failed.as_ref().map(|own| time(own.since)));
        });
    });
}
