package main

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

// The HTTP status of a call of the admin client.
func (w *walk) status(step string, err error) {
	var refused rest.Error
	if errors.As(err, &refused) {
		w.say(step, refused.Code)
	} else {
		w.say(step, err)
	}
}

func adminMisuse(w *walk) {
	tenant := w.prefix + "tenant"
	tenants, namespaces := w.admin.Tenants(), w.admin.Namespaces()
	data := utils.TenantData{Name: tenant, AdminRoles: []string{"role"}, AllowedClusters: []string{"standalone"}}
	w.status("tenant", tenants.Create(data))
	w.status("again", tenants.Create(data))
	w.say("shown", must(tenants.Get(tenant)))
	w.status("without clusters", tenants.Create(utils.TenantData{Name: tenant + "2"}))
	_, err := tenants.Get("missing")
	w.status("missing tenant", err)
	w.status("namespace", namespaces.CreateNamespace(tenant+"/ns"))
	w.status("again", namespaces.CreateNamespace(tenant+"/ns"))
	w.status("in a missing tenant", namespaces.CreateNamespace("missing/ns"))
	w.status("with a number of bundles", namespaces.CreateNsWithNumBundles(tenant+"/bundles", 3))
	w.status("with bundles", namespaces.CreateNsWithBundlesData(tenant+"/data", &utils.BundlesData{Boundaries: []string{"0x00000000", "0x40000000", "0xffffffff"}, NumBundles: 2}))
	w.say("bundles", must(namespaces.GetPolicies(tenant+"/bundles")).Bundles.NumBundles, must(namespaces.GetPolicies(tenant+"/data")).Bundles.Boundaries)
	policies := utils.NewDefaultPolicies()
	policies.MessageTTLInSeconds = pointer(77)
	w.status("with policies", namespaces.CreateNsWithPolices(tenant+"/policies", *policies))
	w.say("its policies", *must(namespaces.GetPolicies(tenant + "/policies")).MessageTTLInSeconds)
	name := *w.namespaceName(tenant + "/ns")
	w.status("retention against the quota", namespaces.SetRetention(tenant+"/ns", utils.RetentionPolicies{RetentionTimeInMinutes: 1, RetentionSizeInMB: 0}))
	w.status("negative", namespaces.SetNamespaceMessageTTL(tenant+"/ns", -1))
	w.status("unknown cluster", namespaces.SetNamespaceReplicationClusters(tenant+"/ns", []string{"missing"}))
	w.status("permission", namespaces.GrantNamespacePermission(name, "role", []utils.AuthAction{"produce", "consume"}))
	w.say("permissions", len(must(namespaces.GetNamespacePermissions(name))["role"]))
	w.status("permission on a subscription", namespaces.GrantSubPermission(name, "sub", []string{"role"}))
	w.say("permissions on it", must(namespaces.GetSubPermissions(name)))
	w.status("a tenant that is not empty", tenants.Delete(tenant))
	for _, each := range must(namespaces.GetNamespaces(tenant)) {
		w.status("delete", namespaces.DeleteNamespace(each))
	}
	w.status("delete the tenant", tenants.Delete(tenant))
	broker := must(w.admin.Brokers().GetActiveBrokers("standalone"))[0]
	w.say("owned", len(must(w.admin.Brokers().GetOwnedNamespaces("standalone", broker))) > 0)
	w.status("healthy", w.admin.Brokers().HealthCheckWithTopicVersion(utils.TopicVersionV2))
	w.status("load report", second(w.admin.BrokerStats().GetLoadReport()))
	w.status("metrics", second(w.admin.BrokerStats().GetMetrics()))
	w.status("topics", second(w.admin.BrokerStats().GetTopics()))
	w.status("unknown key", w.admin.Brokers().UpdateDynamicConfiguration("unknown", "1"))
	w.status("functions", second(w.admin.Functions().GetFunctions("public", "default")))
	w.status("sources", second(w.admin.Sources().ListSources("public", "default")))
	w.status("sinks", second(w.admin.Sinks().ListSinks("public", "default")))
}

func second[T any](_ T, err error) error { return err }

func adminTopics(w *walk) {
	api := w.admin.Topics()
	for _, domain := range []string{"persistent", "non-persistent"} {
		plain := w.topicName(domain + "://public/default/" + w.prefix + "a plus+name")
		parted := w.topicName(domain + "://public/default/" + w.prefix + "parted")
		w.status(domain+": create", api.CreateWithProperties(plain, 0, map[string]string{"a": "1"}))
		w.status(domain+": again", api.Create(plain, 0))
		w.status(domain+": partitioned", api.Create(parted, 2))
		w.status(domain+": more partitions", api.Update(parted, 4))
		w.status(domain+": fewer", api.Update(parted, 3))
		w.say(domain+": partitions", must(api.GetMetadata(parted)).Partitions, must(api.GetMetadata(plain)).Partitions)
		_, err := api.GetStats(w.topicName(domain + "://public/default/" + w.prefix + "missing"))
		w.status(domain+": stats of none", err)
		if domain == "persistent" {
			w.status(domain+": properties", api.UpdateProperties(plain, map[string]string{"b": "2"}))
			w.status(domain+": one fewer", api.RemoveProperty(plain, "a"))
			w.say(domain+": left", must(api.GetProperties(plain)))
			w.say(domain+": last id", must(api.GetLastMessageID(plain)).EntryID)
			w.status(domain+": terminate", second(api.Terminate(plain)))
		}
		w.say(domain+": lookup", must(api.Lookup(plain)).BrokerURL == w.url)
		w.say(domain+": bundle", len(must(api.GetBundleRange(plain))))
		w.status(domain+": stats", second(api.GetStatsWithOption(plain, utils.GetStatsOptions{GetPreciseBacklog: true, ExcludeConsumers: true})))
		w.status(domain+": internal stats", second(api.GetInternalStats(plain)))
		w.say(domain+": of partitions", must(api.GetPartitionedStats(parted, true)).Metadata.Partitions)
		w.status(domain+": grant", api.GrantPermission(plain, "role", []utils.AuthAction{"produce"}))
		w.say(domain+": granted", must(api.GetPermissions(plain)))
		w.status(domain+": revoke", api.RevokePermission(plain, "role"))
		w.status(domain+": unload", api.Unload(plain))
		w.status(domain+": unload partitions", api.Unload(parted))
		w.status(domain+": delete", api.Delete(plain, false, true))
		w.status(domain+": delete again", api.Delete(plain, false, true))
		w.status(domain+": delete partitions", api.Delete(parted, false, false))
	}
}

func adminSubscriptions(w *walk) {
	topic := w.topic("t")
	name := w.topicName(topic)
	check(w.admin.Topics().Create(name, 0))
	api := w.admin.Subscriptions()
	strange := "a b/c%d"
	w.status("create", api.Create(name, strange, utils.Earliest))
	w.status("again", api.Create(name, strange, utils.Earliest))
	w.say("listed", must(api.List(name)))
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	ids := send(producer, "a", "b", "c", "d")
	peeked := func(count int) (texts []string) {
		messages, err := api.PeekMessages(name, strange, count)
		if err != nil {
			return []string{err.Error()}
		}
		for _, message := range messages {
			texts = append(texts, string(message.Payload))
		}
		return texts
	}
	w.say("peek", peeked(3))
	w.status("skip", api.SkipMessages(name, strange, 1))
	w.say("peek", peeked(1))
	w.status("reset", api.ResetCursorToMessageID(name, strange, utils.MessageID{LedgerID: ids[2].LedgerID(), EntryID: ids[2].EntryID(), PartitionIndex: -1}))
	w.say("peek", peeked(1))
	w.status("reset to a time", api.ResetCursorToTimestamp(name, strange, 1000))
	w.say("peek", peeked(1))
	w.say("by id", string(must(api.GetMessageByID(name, ids[3].LedgerID(), ids[3].EntryID())).Payload))
	w.status("no such message", second(api.GetMessageByID(name, 99999999, 0)))
	w.status("expire", api.ExpireMessages(name, strange, 3600))
	w.status("clear", api.ClearBacklog(name, strange))
	w.say("left", must(w.admin.Topics().GetStats(name)).Subscriptions[strange].MsgBacklog)
	w.status("of none", api.ClearBacklog(name, "none"))
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: strange})
	w.status("delete with a consumer", api.Delete(name, strange))
	w.status("with force", api.ForceDelete(name, strange))
	consumer.Close() // it had come back, and made it again
	api.Delete(name, strange)
	w.status("delete none", api.Delete(name, strange))
}

// Each policy that can be set and read: what was set is read, and what is read after it was removed is what was before.
func adminPolicies(w *walk) {
	namespace, topic := "public/"+w.prefix+"policies", "persistent://public/"+w.prefix+"policies/t"
	check(w.admin.Namespaces().CreateNamespace(namespace))
	check(w.admin.Topics().Create(w.topicName(topic), 0))
	policies := policyWalk{w, map[reflect.Type]any{}}
	mode := utils.DeleteWhenNoSubscriptions
	for _, value := range []any{*w.namespaceName(namespace), w.topicName(topic), namespace, context.Background(),
		7, int64(200_000), true, map[string]string{"k": "v"}, []string{"standalone"}, utils.DestinationStorage,
		utils.RetentionPolicies{RetentionTimeInMinutes: 30, RetentionSizeInMB: 100},
		utils.NewBacklogQuota(1000, 60, utils.ProducerException), utils.NewPersistencePolicies(1, 1, 1, 2),
		utils.PersistenceData{BookkeeperEnsemble: 1, BookkeeperWriteQuorum: 1, BookkeeperAckQuorum: 1, ManagedLedgerMaxMarkDeleteRate: 2},
		utils.DispatchRate{DispatchThrottlingRateInMsg: 100, DispatchThrottlingRateInByte: 1000, RatePeriodInSecond: 2},
		utils.DispatchRateData{DispatchThrottlingRateInMsg: 100, DispatchThrottlingRateInByte: 1000, RatePeriodInSecond: 2},
		utils.SubscribeRate{SubscribeThrottlingRatePerConsumer: 5, RatePeriodInSecond: 10},
		utils.PublishRate{PublishThrottlingRateInMsg: 10, PublishThrottlingRateInByte: 100},
		utils.PublishRateData{PublishThrottlingRateInMsg: 10, PublishThrottlingRateInByte: 100},
		utils.NewInactiveTopicPolicies(&mode, 90, true), utils.OffloadPolicies{ManagedLedgerOffloadThresholdInBytes: 1000},
		utils.TopicAutoCreationConfig{Allow: true, Type: "partitioned", Partitions: pointer(3)},
		*utils.NewAutoSubscriptionCreationOverride(), utils.SchemaCompatibilityStrategyForward, utils.Backward,
		utils.DelayedDeliveryData{TickTime: 2000, Active: true},
		utils.BookieAffinityGroupData{BookkeeperAffinityGroupPrimary: "p", BookkeeperAffinityGroupSecondary: "s"}} {
		policies.samples[reflect.TypeOf(value)] = value
	}
	policies.all("namespace", w.admin.Namespaces())
	policies.all("topic", w.admin.Topics())
	policies.all("of a topic", w.admin.(admin.TopicPoliciesProvider).TopicPolicies(false))
	policies.all("everywhere", w.admin.(admin.TopicPoliciesProvider).TopicPolicies(true))
}

type policyWalk struct {
	*walk
	samples map[reflect.Type]any
}

func (p policyWalk) all(title string, api any) {
	methods := reflect.ValueOf(api)
	names := []string{}
	for index := range methods.NumMethod() {
		if name, found := strings.CutPrefix(methods.Type().Method(index).Name, "Set"); found && !strings.HasSuffix(name, "WithContext") {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		get := methods.MethodByName("Get" + name)
		before := p.call(get)
		if !get.IsValid() || slices.Contains([]string{before}, "") {
			p.say(title+" "+name, p.call(methods.MethodByName("Set"+name)))
			continue
		}
		set := p.call(methods.MethodByName("Set" + name))
		read := p.call(get)
		removed := ""
		for _, verb := range []string{"Remove", "Delete", "Clear"} {
			removed += p.call(methods.MethodByName(verb + name))
		}
		if removed != "" {
			removed = "as before: " + p.same(before, p.call(get))
		}
		p.say(title+" "+name, set, read, removed)
	}
}

func (p policyWalk) same(one, other string) string {
	if one == other {
		return "yes"
	}
	return one + " " + other
}

// Calls with a sample for each parameter; nothing when there is no such method, or no sample for it.
func (p policyWalk) call(method reflect.Value) string {
	if !method.IsValid() {
		return ""
	}
	arguments := []reflect.Value{}
	for index := range method.Type().NumIn() {
		wanted := method.Type().In(index)
		if wanted.Kind() == reflect.Interface {
			wanted = reflect.TypeOf(context.Background())
		}
		sample, found := p.samples[wanted]
		if wanted.Kind() == reflect.Bool && method.Type().NumOut() == 2 {
			sample = false // what is set here, not what applies
		}
		if !found {
			return ""
		}
		arguments = append(arguments, reflect.ValueOf(sample))
	}
	results := method.Call(arguments)
	if err, failed := results[len(results)-1].Interface().(error); failed {
		return errorText(err)
	}
	if len(results) == 1 {
		return "ok"
	}
	return string(must(json.Marshal(results[0].Interface())))
}
