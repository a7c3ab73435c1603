// Draws contrib/grafana/berth.json with Grafana's own component library, of data that a
// real Prometheus has. Grafana itself is not here: panels are laid out, and variables
// filled in, as it does.
import { createTheme, dateTime, FieldColorModeId, FieldType, getDisplayProcessor, toDataFrame } from '@grafana/data';
import { LegendDisplayMode } from '@grafana/schema';
import { GlobalStyles, PanelChrome, PanelContextProvider, ThemeContext, TimeSeries } from '@grafana/ui';
import React, { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

const theme = createTheme({ colors: { mode: new URLSearchParams(location.search).get('theme') ?? 'dark' } });
const unit = 30; // a row of Grafana's grid
const gap = 8;
const columns = 24;
const to = Math.floor(Date.now() / 1000);
const settings = window.settings; // { seconds, step, rate }, by the server
const range = { from: dateTime((to - settings.seconds) * 1000), to: dateTime(to * 1000), raw: { from: 'now', to: 'now' } };

// fill puts values for variables, as Grafana does with "All".
const fill = (expr) => expr.replaceAll('$__rate_interval', settings.rate).replaceAll('$instance', '.*').replaceAll('$handler', '.*');

const legend = (format, labels) =>
  format ? format.replace(/\{\{\s*([^}\s]+)\s*\}\}/g, (_, name) => labels[name] ?? '') : JSON.stringify(labels);

async function series(target) {
  const query = new URLSearchParams({ query: fill(target.expr), start: to - settings.seconds, end: to, step: settings.step });
  const response = await fetch('/api/v1/query_range?' + query);
  const answer = await response.json();
  if (answer.status !== 'success') {
    throw new Error(`${target.expr}: ${answer.error}`);
  }
  return answer.data.result.map((s) => ({ name: legend(target.legendFormat, s.metric), values: s.values }));
}

const states = (panel) => panel.type === 'state-timeline';

function frame(panel, one, index) {
  const config = {
    unit: panel.fieldConfig.defaults.unit,
    displayName: one.name,
    color: { mode: FieldColorModeId.PaletteClassic },
    custom: {
      drawStyle: 'line', lineInterpolation: states(panel) ? 'stepAfter' : 'linear', lineWidth: 2, fillOpacity: states(panel) ? 30 : 10,
      showPoints: 'auto', spanNulls: false, axisPlacement: 'auto', ...(states(panel) ? { axisSoftMin: 0, axisSoftMax: 1 } : {}),
    },
  };
  const made = toDataFrame({
    fields: [
      { name: 'Time', type: FieldType.time, values: one.values.map(([at]) => at * 1000), config: {} },
      { name: one.name, type: FieldType.number, values: one.values.map(([, v]) => (v === 'NaN' ? null : Number(v))), config },
    ],
  });
  made.fields[1].state = { seriesIndex: index };
  for (const field of made.fields) {
    field.display = getDisplayProcessor({ field, theme });
  }
  return made;
}

function Panel({ panel, width, height, done }) {
  const [state, set] = useState({});
  useEffect(() => {
    Promise.all(panel.targets.map(series))
      .then((all) => set({ all: all.flat() }))
      .catch((error) => set({ error: String(error) }));
  }, []);
  useEffect(() => {
    if (state.all || state.error) {
      done({ id: panel.id, title: panel.title, series: state.all?.length ?? 0, error: state.error ?? '' });
    }
  }, [state]);
  return (
    <PanelChrome title={panel.title} description={panel.description} width={width} height={height} padding="md">
      {(innerWidth, innerHeight) =>
        state.error ? <div>{state.error}</div>
        : !state.all ? <div>Loading</div>
        : state.all.length === 0 ? <div style={{ textAlign: 'center', paddingTop: innerHeight / 2 - 10, color: theme.colors.text.secondary }}>No data</div>
        : (
          <TimeSeries
            frames={state.all.map((one, i) => frame(panel, one, i))} width={innerWidth} height={innerHeight} timeRange={range} timeZone="utc"
            legend={{ showLegend: true, displayMode: LegendDisplayMode.List, placement: 'bottom', calcs: [] }}
          />
        )}
    </PanelChrome>
  );
}

function Dashboard({ dashboard }) {
  const [results, add] = useState([]);
  const shown = dashboard.panels.filter((p) => p.type !== 'row' && (settings.panels.length === 0 || settings.panels.includes(p.id)));
  const done = (result) => add((all) => [...all.filter((r) => r.id !== result.id), result]);
  useEffect(() => {
    if (results.length === shown.length) { // what uPlot draws comes a little later
      setTimeout(() => fetch('/result', { method: 'POST', body: JSON.stringify({ panels: results, plots: document.querySelectorAll('.u-over').length }) }), 1000);
    }
  }, [results]);
  const width = (document.documentElement.clientWidth - gap) / columns;
  // Without the panels that are left out, the others are two in a row.
  const place = (p, i) => (settings.panels.length === 0 ? p.gridPos : { x: (i % 2) * 12, y: Math.floor(i / 2) * 8, w: 12, h: 8 });
  return (
    <div style={{ position: 'relative', background: theme.colors.background.canvas, minHeight: '100vh' }}>
      {shown.map((p, i) => {
        const at = place(p, i);
        return (
          <div key={p.id} style={{ position: 'absolute', left: gap + at.x * width, top: gap + at.y * unit }}>
            <Panel panel={p} width={at.w * width - gap} height={at.h * unit - gap} done={done} />
          </div>
        );
      })}
    </div>
  );
}

const context = { eventBus: { publish() {}, subscribe: () => ({ unsubscribe() {} }), getStream: () => ({ subscribe: () => ({ unsubscribe() {} }), pipe: () => ({ subscribe: () => ({ unsubscribe() {} }) }) }) }, eventsScope: 'global' };

window.addEventListener('error', (e) => fetch('/result', { method: 'POST', body: JSON.stringify({ panels: [], error: String(e.message) }) }));
const dashboard = await (await fetch('/dashboard.json')).json();
createRoot(document.getElementById('root')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles isExtensionPage={false} hackNoBackdropBlur={true} />
    <PanelContextProvider value={context}>
      <Dashboard dashboard={dashboard} />
    </PanelContextProvider>
  </ThemeContext.Provider>,
);
