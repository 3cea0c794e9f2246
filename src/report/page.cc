// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <string_view>

#include "base/cat.h"
#include "base/file.h"
#include "report/assets.h"
#include "report/check_report.h"
#include "report/data.h"
#include "report/page_limits.h"
#include "trimtab/report.h"

namespace trimtab {

namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// The shortest text that reads back as the same number.
std::string exact(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string shown(double value, int decimals) {
  std::array<char, 400> text;  // the largest double has 309 digits
  std::string out(text.data(), std::to_chars(text.data(), text.data() + text.size(), value,
                                             std::chars_format::fixed, std::clamp(decimals, 0, 17))
                                   .ptr);
  const size_t first = out[0] == '-' ? 1 : 0;
  const size_t point = std::min(out.find('.'), out.size());
  for (size_t i = point; i > first + 3;) out.insert(i -= 3, 1, ',');
  return out;
}

// A number whose full precision and name stay readable for programs.
std::string number(const std::string& key, double value, int decimals) {
  return cat("<data", key.empty() ? "" : cat(" data-key=\"", escaped(key), "\""), " value=\"",
             exact(value), "\">", shown(value, decimals), "</data>");
}

std::string headlines(const Report& report) {
  std::string out = "<section id=\"headlines\" aria-label=\"Headline numbers\">\n";
  for (const ReportHeadline& headline : report.headlines) {
    out += cat("<div class=\"tile", headline.is_par ? " par" : "", "\"><h2>",
               escaped(headline.label), "</h2><dl>");
    for (const ReportNumber& one : headline.numbers) {
      out += cat("<div", one.is_limit ? " class=\"limit\"" : "", "><dt>", escaped(one.label),
                 "</dt><dd>", number(one.key, one.value, one.decimals), "</dd></div>");
    }
    out += cat("</dl><p class=\"about\">", escaped(headline.about), "</p></div>\n");
  }
  return out + "</section>\n";
}

std::string section(std::string_view id, std::string_view title, std::string_view note) {
  return cat("<section id=\"", id, "\" class=\"drawn\"><h2>", title, "</h2><p class=\"note\">",
             note, "</p><div class=\"draw\"></div></section>\n");
}

bool has_tokens(const Report& report) {
  return std::any_of(report.expert_load.begin(), report.expert_load.end(),
                     [](int64_t load) { return load > 0; });
}

bool has_traffic(const Report& report) {
  return std::any_of(report.states.begin(), report.states.end(),
                     [](const ReportState& state) { return !state.rank_copies.empty(); });
}

std::string drawings(const Report& report, size_t drawn) {
  const size_t layers = report.layer_ids.size();
  std::string out =
      "<noscript><p class=\"note\">The drawings need JavaScript; headline numbers and tables do "
      "not.</p></noscript>\n";
  if (drawn == 0) {
    out += "<p class=\"note\">A layer is too large to draw.</p>\n";
  } else {
    if (drawn < layers) {
      out +=
          cat("<p class=\"note\">Drawn: the ", drawn, " most uneven of ", layers, " layers.</p>\n");
    }
    out += "<form id=\"choice\" aria-label=\"What is drawn\"></form>\n";
    const bool tokens = has_tokens(report);
    if (tokens) {
      out += section("ranks", "Tokens per rank",
                     "One layer&#39;s tokens, the steps of a drawing together. All ranks wait for "
                     "the straggler, the busiest; "
                     "were all at the mean, nobody would.");
      out += section("rank-map", "Layers &times; ranks",
                     "Each rank&#39;s tokens over the mean of its layer, every drawing on the same "
                     "scale. Click a row "
                     "to choose the layer.");
    }
    out += section(
        "expert-map", "Layers &times; experts",
        tokens
            ? "Each expert&#39;s tokens over the mean of its layer, and how many replicas it has."
            : "How many replicas each expert has.");
    out += section(
        "placement", "Placement",
        cat("Node, rank, slot: the number is the expert",
            tokens ? ", the colour the tokens that its slot gets over those of the mean slot" : "",
            ". Point at an expert to see all its replicas."));
  }
  if (has_traffic(report)) {
    out += section("traffic", "Traffic from rank to rank",
                   "Copies of tokens that a rank (row) sends to another (column) in a step, over "
                   "the mean of the first drawing; one for each rank that a token visits. What "
                   "stays on a rank is left out. Lines are between nodes.");
  }
  if (!report.timeline.points.empty()) {
    out += section("time", cat("PAR over ", escaped(report.timeline.unit), "s"),
                   "Above the mean over the layers, below the worst of them. 1 is level.");
  }
  if (!report.curve.points.empty()) {
    out += section("curve", "PAR against moves",
                   "What plans with other numbers of moves reach, each move where it gains most; "
                   "mean over steps and layers. The dot is the plan of this page.");
  }
  if (drawn > 0 && !report.moved.empty()) {
    out += section("moves", "Moves", "Expert weights that a rank must get from another.");
  }
  return out;
}

std::string table(const ReportTable& table) {
  std::string out = cat("<section class=\"table\"><h2>", escaped(table.title),
                        "</h2><div class=\"scroll\"><table><thead><tr>", "<th scope=\"col\">",
                        escaped(table.row_label), "</th>");
  for (const ReportTable::Column& column : table.columns) {
    out += cat("<th scope=\"col\">", escaped(column.label), "</th>");
  }
  out += "</tr></thead><tbody>\n";
  const size_t rows = std::min(table.rows.size(), kMostTableRows);
  for (const ReportTable::Row& row : std::span(table.rows).first(rows)) {
    out += cat("<tr><th scope=\"row\">", escaped(row.name), "</th>");
    for (size_t c = 0; c < table.columns.size(); ++c) {
      const ReportTable::Column& column = table.columns[c];
      const std::optional<double>& value = row.values[c];
      out += cat("<td>", value ? number(column.key, *value, column.decimals) : "&ndash;", "</td>");
    }
    out += "</tr>\n";
  }
  out += "</tbody></table></div>";
  if (rows < table.rows.size())
    out += cat("<p class=\"note\">The first ", rows, " of ", table.rows.size(), ".</p>");
  return out + "</section>\n";
}

std::string sharing(const Report& report) {
  if (report.split.empty()) return "Every expert's tokens are shared equally among its replicas.";
  return cat("The tokens of every step are shared out over the replicas by the rule ", report.split,
             "; only the colours of the placement take them as shared equally.");
}

std::string definitions(const Report& report) {
  std::vector<ReportText> all;
  if (has_tokens(report)) {
    all = {
        {"Tokens of a rank",
         "Tokens that the router sent to the rank's experts: one that goes to k experts counts k "
         "times. " +
             sharing(report)},
        {"PAR",
         "Peak-to-average rank load: the busiest rank's tokens over the mean of all ranks. At 1 "
         "all are level. At "
         "1.25 the mean rank waits for 1 - 1/1.25 = 20 % of the time that the experts take. No "
         "tokens count as 1."},
        {"Balancedness", "1 / PAR: the mean over the busiest, as vLLM and SGLang log it."}};
  }
  all.push_back({"Replica", "One of several slots that hold the same expert."});
  if (!report.moved.empty()) {
    all.push_back({"Move",
                   "One expert's weights to one slot. What the rank holds already in another slot "
                   "is no move."});
  }
  all.insert(all.end(), report.definitions.begin(), report.definitions.end());
  std::string out = "<section id=\"definitions\"><h2>How each number is defined</h2><dl>\n";
  for (const ReportText& one : all) {
    out += cat("<div><dt>", escaped(one.name), "</dt><dd>", escaped(one.text), "</dd></div>\n");
  }
  return out + "</dl></section>\n";
}

std::string header(const Report& report) {
  std::string out = cat("<header><h1>", escaped(report.title), "</h1>\n<dl>");
  for (const ReportText& fact : report.facts) {
    out += cat("<div><dt>", escaped(fact.name), "</dt><dd>", escaped(fact.text), "</dd></div>");
  }
  return out + "</dl></header>\n";
}

}  // namespace

std::string report_html(const Report& report) {
  check_report(report);
  const std::vector<int> layers = drawn_layers(report);
  std::string page =
      cat("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
          // The browser itself refuses whatever is not in this file.
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'; script-src "
          "'unsafe-inline'\">\n",
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
          "<meta name=\"color-scheme\" content=\"light dark\">\n<title>", escaped(report.title),
          "</title>\n<style>\n", kReportStyle, "</style>\n</head>\n<body>\n", header(report),
          "<main>\n", headlines(report), drawings(report, layers.size()));
  for (const ReportTable& one : report.tables) page += table(one);
  page += cat(definitions(report), "</main>\n<footer>", escaped(report.made_by), "</footer>\n",
              "<script type=\"application/json\" id=\"data\">", report_data(report, layers),
              "</script>\n<script>\n", kReportScript, "</script>\n</body>\n</html>\n");
  return page;
}

void write_report(const std::string& path, const Report& report) {
  const std::string page = report_html(report);
  write_file(path, {std::as_bytes(std::span(page))});
}

}  // namespace trimtab
