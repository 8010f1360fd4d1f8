//! Figures for Prometheus, under names of our own and those of vLLM, which routers read.

use std::fmt::Write;

use crate::scheduler::{Histogram, Reason, Stats};

/// The text format, version 0.0.4.
pub(super) fn text(stats: &Stats, model: &str) -> String {
    let mut out =
        Text { out: String::new(), model: model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n") };
    let used = 1.0 - stats.free_pages as f64 / stats.pages.max(1) as f64;
    let prefixes = stats.prefixes;
    out.one("num_requests_running", "gauge", "Requests that are computed now.", stats.running as f64);
    out.one("num_requests_waiting", "gauge", "Requests that wait.", stats.waiting as f64);
    out.one("kv_cache_usage_perc", "gauge", "Share of KV pages that running requests hold, 0 to 1.", used);
    out.one("gpu_cache_usage_perc", "gauge", "As kv_cache_usage_perc.", used);
    out.one("kept_pages", "gauge", "KV pages kept of earlier requests.", stats.kept_pages as f64);
    out.one("steps_total", "counter", "Steps of the engine.", stats.steps as f64);
    out.one(
        "num_preemptions_total",
        "counter",
        "Requests that lost their pages for a while.",
        stats.preemptions as f64,
    );
    out.one("prefix_cache_queries_total", "counter", "Prompt tokens looked for.", prefixes.wanted as f64);
    out.one("prefix_cache_hits_total", "counter", "Prompt tokens found computed.", prefixes.found as f64);
    out.one("prefix_cache_evicted_pages_total", "counter", "Kept pages given back.", prefixes.evicted as f64);
    out.one("prompt_tokens_total", "counter", "Tokens of prompts.", stats.prompt_tokens as f64);
    out.one("generation_tokens_total", "counter", "Tokens drawn.", stats.drawn_tokens as f64);
    out.one("spec_decode_num_drafts_total", "counter", "Drafts of tokens.", stats.drafts.drafts as f64);
    out.one("spec_decode_num_draft_tokens_total", "counter", "Tokens of drafts.", stats.drafts.drafted as f64);
    out.one(
        "spec_decode_num_accepted_tokens_total",
        "counter",
        "Tokens of drafts that were drawn.",
        stats.drafts.accepted as f64,
    );
    out.one("request_failure_total", "counter", "Requests that failed.", stats.failed as f64);
    let reasons = Reason::ALL.map(|reason| {
        let name = match reason {
            Reason::Stop => "stop",
            Reason::Length => "length",
            Reason::Cancelled => "abort",
        };
        (format!(",finished_reason=\"{name}\""), stats.finished[reason as usize] as f64)
    });
    out.all("request_success_total", "counter", "Requests that ended.", &reasons);
    out.histogram("time_to_first_token_seconds", "From arrival to the first token.", &stats.first_token);
    out.histogram("inter_token_latency_seconds", "From one token to the next.", &stats.next_token);
    out.histogram("time_per_output_token_seconds", "As inter_token_latency_seconds.", &stats.next_token);
    out.histogram("e2e_request_latency_seconds", "From arrival to the end.", &stats.request);
    out.out
}

struct Text {
    out: String,
    model: String,
}

impl Text {
    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.all(name, kind, help, &[(String::new(), value)]);
    }

    fn all(&mut self, name: &str, kind: &str, help: &str, values: &[(String, f64)]) {
        for prefix in ["farpast", "vllm"] {
            self.head(prefix, name, kind, help);
            for (labels, value) in values {
                self.line(&format!("{prefix}:{name}"), labels, *value);
            }
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        for prefix in ["farpast", "vllm"] {
            self.head(prefix, name, "histogram", help);
            let bucket = format!("{prefix}:{name}_bucket");
            for (bound, count) in Histogram::BOUNDS.iter().zip(histogram.counts) {
                self.line(&bucket, &format!(",le=\"{bound:?}\""), count as f64);
            }
            self.line(&bucket, ",le=\"+Inf\"", histogram.count as f64);
            self.line(&format!("{prefix}:{name}_sum"), "", histogram.sum);
            self.line(&format!("{prefix}:{name}_count"), "", histogram.count as f64);
        }
    }

    fn head(&mut self, prefix: &str, name: &str, kind: &str, help: &str) {
        let written = write!(self.out, "# HELP {prefix}:{name} {help}\n# TYPE {prefix}:{name} {kind}\n");
        written.expect("writing to a string");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let Self { out, model } = self;
        writeln!(out, "{name}{{model_name=\"{model}\"{labels}}} {value}").expect("writing to a string");
    }
}
