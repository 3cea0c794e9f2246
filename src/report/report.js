// SPDX-License-Identifier: Apache-2.0
// The page's drawings, from the numbers that data.cc left in it.
{
  const data = JSON.parse(document.getElementById('data').textContent);
  const num_layers = data.ids.length, num_states = data.states.length;
  const ranks = num_states > 0 ? data.states[0].slots.length : 0;
  const node = (rank) => (data.nodes.length > 0 ? data.nodes[rank] : 0);
  const one_node = new Set(data.nodes).size < 2;
  const has_tokens = data.tokens.some((tokens) => tokens > 0);
  const element = (id) => document.querySelector(`#${id} .draw`);

  const kLevel = [0.5, 0.67, 0.8, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.2, 1.5, 2];
  const kHeat = [0.125, 0.25, 0.5, 0.8, 1.25, 2, 3, 5, 8];
  const kCopies = [2, 3, 4, 5, 9];
  const styles = (prefix, thresholds) =>
      Array.from({length: thresholds.length + 1}, (_, i) => prefix + i);

  const rank_ratio = (state, layer, rank) => state.rank[layer][rank] / data.rank_parts;
  const par = (state, layer) =>
      (state.tokens[layer] > 0 ? Math.max(...state.rank[layer]) / data.rank_parts : 1);
  const rank_tokens = (state, layer, rank) =>
      (rank_ratio(state, layer, rank) * state.tokens[layer]) / ranks;
  const level = (state, layer, rank) =>
      (state.tokens[layer] > 0 ? grade('l', kLevel, rank_ratio(state, layer, rank)) : 'none');

  const copies_of = (state, layer) => {
    const copies = new Array(data.experts).fill(0);
    for (const expert of state.map[layer]) ++copies[expert];
    return copies;
  };

  // The layer that is worst under the first state, and what it is compared with.
  const view = {layer: 0, state: Math.min(1, num_states - 1), by_load: false};
  for (let l = 1; l < num_layers; ++l) {
    if (par(data.states[0], l) > par(data.states[0], view.layer)) view.layer = l;
  }
  const worst = view.layer;
  const shown = () => (num_states > 1 ? [data.states[0], data.states[view.state]] : data.states);
  const title = (state) => (num_states > 1 ? state.name : '');

  function choose(changes) {
    Object.assign(view, changes);
    draw_all();
  }

  function draw_choice() {
    const form = document.getElementById('choice');
    const pars = (l) => `: PAR ${shown().map((state) => par(state, l).toFixed(3)).join(' → ')}${
        l === worst && num_layers > 1 ? ' (most uneven)' : ''}`;
    const layer = (l) => `layer ${data.ids[l]}${has_tokens ? pars(l) : ''}`;
    const option = (value, label, chosen) =>
        `<option value="${value}"${chosen ? ' selected' : ''}>${escaped(label)}</option>`;
    let html = `<label>Layer <select name="layer">${
        data.ids.map((_, l) => option(l, layer(l), l === view.layer)).join('')}</select></label>`;
    if (num_layers > 1)
      html += '<button type="button" name="back" aria-label="Layer before">‹</button>' +
          '<button type="button" name="on" aria-label="Next layer">›</button>';
    if (num_states > 2) {
      const others =
          data.states.map((state, i) => (i === 0 ? '' : option(i, state.name, i === view.state)))
              .join('');
      html += `<label>${escaped(data.states[0].name)} against <select name="state">${
          others}</select></label>`;
    }
    form.innerHTML = html;
    form.elements.layer.onchange = (event) => choose({layer: +event.target.value});
    if (num_layers > 1) {
      form.elements.back.onclick = () => choose({layer: Math.max(0, view.layer - 1)});
      form.elements.on.onclick = () => choose({layer: Math.min(num_layers - 1, view.layer + 1)});
    }
    if (num_states > 2)
      form.elements.state.onchange = (event) => choose({state: +event.target.value});
  }

  function draw_ranks() {
    if (!has_tokens) return;
    // One scale in means: states of more tokens are not higher.
    const most = Math.max(...shown().map((state) => par(state, view.layer))) * 1.02;
    const bodies = panels(element('ranks'), shown().map(title), 330);
    shown().forEach((state, i) => {
      const order =
          Array.from({length: ranks}, (_, r) => r)
              .sort((a, b) => state.rank[view.layer][b] - state.rank[view.layer][a] || a - b);
      const about = (r) => `${compact(rank_tokens(state, view.layer, r))} tokens, ${
          rank_ratio(state, view.layer, r).toFixed(3)} × mean`;
      const none = state.tokens[view.layer] === 0;
      const mean = state.tokens[view.layer] / ranks;
      bar_chart(bodies[i], {
        values: order.map((r) => rank_tokens(state, view.layer, r)),
        most: most * mean || 1,
        mean,
        mean_label: none ? '' : `mean ${compact(mean)}`,
        strong: 0,
        strong_label: none ?
            'no tokens' :
            `rank ${order[0]}: ${rank_ratio(state, view.layer, order[0]).toFixed(3)} × mean`,
        many: `${ranks} ranks`,
        name: (k) => order[k],
        label: `Tokens of each rank, layer ${data.ids[view.layer]}, ${state.name}`,
        tip: (k) =>
            [`rank ${order[k]}${one_node ? '' : `, node ${node(order[k])}`}`, about(order[k])],
      });
    });
  }

  function draw_rank_map() {
    if (!has_tokens) return;
    const boundaries = [];
    for (let r = 1; r < ranks; ++r)
      if (node(r) !== node(r - 1)) boundaries.push(r);
    const place = element('rank-map');
    const bodies = panels(place, shown().map(title), 330);
    shown().forEach((state, i) => heat_map(bodies[i], {
                      rows: num_layers,
                      columns: ranks,
                      height: 360,
                      boundaries,
                      chosen: view.layer,
                      of: (l, r) => level(state, l, r),
                      pick: (l, several) =>
                          several.reduce((a, b) => (state.rank[l][b] > state.rank[l][a] ? b : a)),
                      row_label: (l) => data.ids[l],
                      column_label: (r) => r,
                      label: `Layers by ranks, ${state.name}`,
                      tip: (l, r) =>
                          [`layer ${data.ids[l]}, rank ${r}${one_node ? '' : `, node ${node(r)}`}`,
                           `${compact(rank_tokens(state, l, r))} tokens, ${
                               rank_ratio(state, l, r).toFixed(3)} × mean`,
                           `PAR of the layer ${par(state, l).toFixed(3)}`],
                      click: (l) => choose({layer: l}),
                    }));
    place.insertAdjacentHTML(
        'beforeend', legend(styles('l', kLevel), kLevel, 'tokens of a rank ÷ mean of the layer'));
  }

  function draw_expert_map() {
    const place = element('expert-map');
    const states = shown();
    const has_copies = states.some((state) => state.map[0].length > data.experts);
    if (!has_tokens && !has_copies) {
      place.innerHTML = '<p class="note">Every expert has one slot.</p>';
      return;
    }
    const names =
        (has_tokens ? ['tokens'] : [])
            .concat(
                has_copies ?
                    states.map((state) => `replicas${num_states > 1 ? `, ${state.name}` : ''}`) :
                                                                      []);
    const bodies = panels(place, names, 5000);
    const orders = data.expert.map((loads) => {
      const order = loads.map((_, e) => e);
      return view.by_load ? order.sort((a, b) => loads[b] - loads[a] || a - b) : order;
    });
    const copies = states.map((state) => data.ids.map((_, l) => copies_of(state, l)));
    const hottest = (l, several) => several.reduce(
        (a, b) => (data.expert[l][orders[l][b]] > data.expert[l][orders[l][a]] ? b : a));
    const tip = (l, k) => {
      const e = orders[l][k];
      const ratio = data.expert[l][e] / data.expert_parts;
      const count =
          states.map((state, s) => `${copies[s][l][e]}${num_states > 1 ? ` ${state.name}` : ''}`)
              .join(', ');
      const load = has_tokens ?
          [
            `${compact((ratio * data.tokens[l]) / data.experts)} tokens, ${ratio.toFixed(3)} × mean`
          ] :
          [];
      return [`layer ${data.ids[l]}, expert ${e}`, ...load, `slots: ${count}`];
    };
    const common = {
      rows: num_layers,
      columns: data.experts,
      height: 300,
      chosen: view.layer,
      pick: hottest,
      tip,
      row_label: (l) => data.ids[l],
      column_label: (k) => k,
      click: (l) => choose({layer: l}),
    };
    if (has_tokens)
      heat_map(bodies.shift(), {
        ...common,
        label: 'Tokens of layers by experts',
        of: (l, k) =>
            (data.tokens[l] > 0 ?
                 grade('h', kHeat, data.expert[l][orders[l][k]] / data.expert_parts) :
                 'none')
      });
    bodies.forEach((body, s) => heat_map(body, {
                     ...common,
                     height: 200,
                     label: 'Replicas of layers by experts',
                     of: (l, k) => grade('c', kCopies, copies[s][l][orders[l][k]])
                   }));
    if (has_tokens) {
      place.insertAdjacentHTML(
          'afterbegin',
          `<label class="switch"><input type="checkbox"${
              view.by_load ? ' checked' : ''}> busiest expert of each layer first</label>`);
      place.querySelector('input').onchange = (event) => choose({by_load: event.target.checked});
    }
    place.insertAdjacentHTML(
        'beforeend',
        (has_tokens ? legend(styles('h', kHeat), kHeat, 'tokens of an expert ÷ mean of the layer') :
                      '') +
            (has_copies ? legend(styles('c', kCopies), kCopies, 'slots that hold the expert') :
                          ''));
  }

  // Slots of a rank side by side: all of up to a dozen, else rows of like length.
  const in_row = (slots) => Math.max(2, Math.ceil(slots / Math.ceil(slots / 12 || 1)));

  function draw_placement() {
    const place = element('placement');
    const most = Math.max(...shown().map((state) => state.map[view.layer].length));
    if (most > 8192) {
      place.innerHTML = `<p class="note">A layer has ${most} slots, too many to draw.</p>`;
      return;
    }
    const bodies = panels(place, shown().map(title), 480);
    const wide = Math.max(26, 7 + 7 * String(data.experts - 1).length);
    shown().forEach((state, i) => {
      const map = state.map[view.layer], copies = copies_of(state, view.layer);
      const moved = new Set(
          i === 1 && view.state === 1 && data.moved.length > 0 ? data.moved[view.layer] : []);
      const slot_ratio = (expert) =>
          ((data.expert[view.layer][expert] / data.expert_parts) * map.length) / data.experts /
          copies[expert];
      const busiest = state.tokens[view.layer] > 0 ?
          state.rank[view.layer].indexOf(Math.max(...state.rank[view.layer])) :
          -1;
      const heading = (r) =>
          (has_tokens ? `<span class="dot ${level(state, view.layer, r)}"></span>rank ${r} <b>${
                            rank_ratio(state, view.layer, r).toFixed(2)}×</b>` :
                        `rank ${r}`);
      let html = '', slot = 0;
      for (let r = 0; r < ranks; ++r) {
        if (r === 0 || node(r) !== node(r - 1))
          html += `${r > 0 ? '</div></div>' : ''}<div class="node">${
              one_node ? '' : `<h3>node ${node(r)}</h3>`}<div class="ranks">`;
        html += `<div class="rank${r === busiest ? ' busiest' : ''}"><h4>${
            heading(r)}</h4><div class="slots" style="--wide:${wide}px;max-width:${
            (wide + 2) * in_row(state.slots[r])}px">`;
        for (let s = 0; s < state.slots[r]; ++s, ++slot) {
          const e = map[slot];
          const heat = data.tokens[view.layer] > 0 ? grade('h', kHeat, slot_ratio(e)) : 'none';
          html += `<i class="${heat}${copies[e] > 1 ? ' copy' : ''}${
              moved.has(slot) ? ' moved' : ''}" data-e="${e}" data-s="${slot}">${e}</i>`;
        }
        html += state.slots[r] === 0 ? 'no slots</div></div>' : '</div></div>';
      }
      bodies[i].innerHTML = `${html}</div></div>`;
      hover(bodies[i], (x, y, target) => {
        const e = target.dataset.e;
        mark_expert(place, e);
        if (e === undefined) return null;
        return [
          `expert ${e}, slot ${target.dataset.s}`,
          ...(has_tokens ? [`${slot_ratio(e).toFixed(3)} × the mean slot`] : []),
          `${copies[e]} slot${copies[e] > 1 ? 's' : ''} hold${copies[e] > 1 ? '' : 's'} it`
        ].concat(moved.has(+target.dataset.s) ? ['its weights move here'] : []);
      });
    });
    const has_copies = shown().some((state) => state.map[view.layer].length > data.experts);
    const kinds = (has_copies ? '<span><i class="h4 copy">7</i> has replicas</span>' : '') +
        (data.moved.length > 0 && view.state === 1 ?
             '<span><i class="h4 moved">7</i> moves here</span>' :
             '');
    place.insertAdjacentHTML(
        'beforeend',
        `${
            has_tokens ? legend(styles('h', kHeat), kHeat, 'tokens of a slot ÷ mean slot') :
                         ''}<p class="legend">${kinds}</p>`);
  }

  function draw_traffic() {
    const place = element('traffic');
    if (!place) return;
    const states = shown().filter((state) => state.traffic.length > 0);
    const {mean, ranks: in_row, token_bytes} = data.traffic;
    const rows = states[0].traffic.length;
    const boundaries = [];
    for (let r = 1; r < rows; ++r)
      if (node(r * in_row) !== node(r * in_row - 1)) boundaries.push(r);
    const ratio = (state, r, c) => state.traffic[r][c] / data.rank_parts;
    const named = (r) => {
      const first = r * in_row, last = Math.min(first + in_row, ranks) - 1;
      const which = first === last ? `rank ${first}` : `ranks ${first} to ${last}`;
      return one_node ? which : `${which}, node ${node(first)}`;
    };
    const bodies = panels(place, states.map(title), 330);
    const size = (copies) => `${compact(copies)} copies${
        token_bytes > 0 ? `, ${compact(copies * token_bytes)}B` : ''} a step`;
    states.forEach(
        (state, i) => heat_map(bodies[i], {
          rows,
          columns: rows,
          height: 420,
          tallest: 40,
          boundaries,
          row_boundaries: boundaries,
          of: (r, c) => (r === c ? 'none' : grade('h', kHeat, ratio(state, r, c))),
          row_label: (r) => r * in_row,
          column_label: (c) => c * in_row,
          pick: (r, several) =>
              several.reduce((a, b) => (state.traffic[r][b] > state.traffic[r][a] ? b : a)),
          label: `Traffic from rank to rank, ${state.name}`,
          tip: (r, c) =>
              [`from ${named(r)}`, `to ${named(c)}`, size(ratio(state, r, c) * mean),
               ...(r === c ? [] : [`${ratio(state, r, c).toFixed(3)} × mean`])],
        }));
    place.insertAdjacentHTML(
        'beforeend', legend(styles('h', kHeat), kHeat, 'copies ÷ mean of the first drawing'));
  }

  let marked;
  function mark_expert(place, expert) {
    if (expert === marked) return;
    marked = expert;
    for (const one of place.querySelectorAll('.same')) one.classList.remove('same');
    if (expert !== undefined)
      for (const one of place.querySelectorAll(`i[data-e="${expert}"]`)) one.classList.add('same');
  }

  function draw_time() {
    const place = element('time');
    if (!place) return;
    const {series, points, unit, of, marks} = data.time;
    const style = (i) => `s${series.length === 1 ? 1 : i % 9}`;
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    const key = series
                    .map(
                        (one, i) => `<span><svg width="22" height="10"><path class="line ${
                            style(i)}" d="M0 5h22"/></svg>${escaped(one.name || 'PAR')}, mean ${
                            mean(one.par).toFixed(3)}</span>`)
                    .join('');
    const mark_key = (trouble, name) =>
        (marks.some((mark) => mark.trouble === trouble) ?
             `<span><svg width="8" height="12"><path class="mark${
                 trouble ? ' trouble' : ''}" d="M4 0v12"/></svg>${name}</span>` :
             '');
    place.innerHTML = `<p class="legend">${key}${mark_key(false, 'replan')}${
        mark_key(true, 'replan with trouble')}</p><div></div><h3>Worst layer${
        of > 1 ? ` and ${unit}` : ''}</h3><div></div>`;
    const [top, bottom] = place.querySelectorAll('div');
    const when = (i) => `${unit} ${points[i]}${of > 1 ? ` and the ${of - 1} after` : ''}`;
    const moves = (one, i) =>
        (one.moves.length > 0 && one.moves[i] >= 0 ? `, ${one.moves[i]} moves before` : '');
    const marked_at = new Map(marks.map((mark) => [mark.at, mark.texts]));
    const common = {
      n: points.length,
      low: 1,
      marks,
      x_label: (i) => points[i],
      unit: of > 1 ? `${unit}, ${of} a point` : unit
    };
    line_chart(top, {
      ...common,
      height: 170,
      label: 'Mean PAR over time',
      series: series.map((one, i) => ({style: style(i), values: one.par})),
      strips: series.flatMap(
          (one, i) =>
              (one.moves.some((m) => m >= 0) ? [{
                style: style(i),
                name: `moves, ${one.name}: at most ${compact(Math.max(...one.moves))}`,
                values: one.moves
              }] :
                                               [])),
      tip: (i) => [when(i)].concat(
          series.map((one) => `${one.name} ${one.par[i].toFixed(4)}${moves(one, i)}`),
          marked_at.get(i) || []),
    });
    line_chart(bottom, {
      ...common,
      height: 110,
      label: 'Worst PAR over time',
      series: series.map((one, i) => ({style: style(i), values: one.worst})),
      tip: (i) => [when(i)].concat(
          series.map((one) => `${one.name} ${one.worst[i].toFixed(4)}`), marked_at.get(i) || []),
    });
  }

  function draw_curve() {
    const place = element('curve');
    if (!place) return;
    const {points, plan} = data.curve;
    xy_chart(place, {
      points: points.map(([moves, par]) => [moves, par]),
      marked: [plan[0], plan[1]],
      low: 1,
      height: 190,
      label: 'PAR against moves',
      unit: 'moves, all layers',
      tip: (i) =>
          [`${points[i][0]} moves`, `PAR of a step ${points[i][1].toFixed(4)}`,
           `PAR of the window ${points[i][2].toFixed(4)}`],
    });
  }

  function draw_moves() {
    const place = element('moves');
    if (!place) return;
    const [before, after] = data.states;
    const count = data.moved.map((slots) => slots.length);
    if (Math.max(...count) === 0) {
      place.innerHTML = '<p class="note">Nothing moves.</p>';
      return;
    }
    place.innerHTML = '<div></div><div class="scroll"></div>';
    bar_chart(place.firstChild, {
      values: count,
      most: Math.max(...count) * 1.02,
      mean: count.reduce((a, b) => a + b, 0) / num_layers,
      mean_label: '',
      strong: view.layer,
      strong_label: `layer ${data.ids[view.layer]}: ${count[view.layer]}`,
      name: (l) => data.ids[l],
      label: 'Moves of each layer',
      tip: (l) => [`layer ${data.ids[l]}`, `${count[l]} moves`],
      click: (l) => choose({layer: l}),
    });
    const of_slot = after.slots.flatMap((slots, r) => new Array(slots).fill(r));
    const of_slot_before = before.slots.flatMap((slots, r) => new Array(slots).fill(r));
    const holders = (expert) => [...new Set(
        before.map[view.layer].flatMap((e, slot) => (e === expert ? [of_slot_before[slot]] : [])))];
    const rows = data.moved[view.layer]
                     .map((slot) => {
                       const expert = after.map[view.layer][slot];
                       return `<tr><td>${of_slot[slot]}</td><td>${slot}</td><td>${expert}</td><td>${
                           before.map[view.layer][slot] ??
                           ''}</td><td>${holders(expert).join(', ')}</td></tr>`;
                     })
                     .join('');
    place.lastChild.innerHTML = rows === '' ?
        `<p class="note">Layer ${data.ids[view.layer]}: nothing moves.</p>` :
        '<table><thead><tr><th>to rank</th><th>slot</th><th>expert</th><th>in place of</th>' +
            `<th>ranks that hold it before</th></tr></thead><tbody>${rows}</tbody></table>`;
  }

  // One scale for all, from 1; what all are held against is a tick.
  function draw_headlines() {
    const tiles = [...document.querySelectorAll('.tile.par')];
    const values =
        (tile,
         limit) => [...tile.querySelectorAll(`dl > div${limit ? '.limit' : ':not(.limit)'} data`)]
                       .map((one) => +one.value);
    const most =
        Math.max(1.05, ...tiles.flatMap((tile) => values(tile, false).concat(values(tile, true))));
    for (const tile of tiles) {
      const width = tile.clientWidth - 28,
            x = (value) => 6 + ((width - 12) * (value - 1)) / (most - 1);
      const marks = values(tile, false);
      let content = line(6, 12, width - 6, 12, 'track') + line(6, 6, 6, 18, 'track');
      if (marks.length > 1) content += line(x(marks[0]), 12, x(marks[1]), 12, 'span');
      for (const value of values(tile, true)) content += line(x(value), 4, x(value), 20, 'bound');
      marks.forEach((value, i) => {
        content += `<circle class="${i === 0 && marks.length > 1 ? 'hollow' : 'solid'}" cx="${
            x(value).toFixed(1)}" cy="12" r="5"/>`;
      });
      const terms = [...tile.querySelectorAll('dt')];
      for (const term of terms)
        term.dataset.glyph = term.parentNode.className === 'limit' ? '|' :
            terms[0] === term && marks.length > 1                  ? '○' :
                                                                     '●';
      tile.querySelector('svg')?.remove();
      tile.insertAdjacentHTML(
          'beforeend',
          svg(width, 38, 'on a scale from 1',
              content + text(2, 34, '1', 'small') + text(width, 34, most.toFixed(2), 'small end')));
    }
  }

  function draw_all() {
    draw_headlines();
    draw_time();
    draw_curve();
    draw_traffic();
    if (num_layers === 0) return;
    draw_choice();
    draw_ranks();
    draw_rank_map();
    draw_expert_map();
    draw_placement();
    draw_moves();
  }

  let drawn = 0;
  function draw_at_width() {
    if (drawn === document.body.clientWidth) return;
    drawn = document.body.clientWidth;
    draw_all();
  }
  draw_at_width();
  new ResizeObserver(() => requestAnimationFrame(draw_at_width)).observe(document.body);
}
